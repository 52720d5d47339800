"""gpudeck mcp: the hub's data for a language model that starts this command (Model Context Protocol over stdio)."""

import asyncio

import click

from gpudeck.cli.options import hub_option
from gpudeck.client import Client
from gpudeck.hub_lookup import find_token
from gpudeck.model.plugins import need

_EXAMPLES = """\b
Examples:
  gpudeck mcp                                 with the hub and the token of `gpudeck login`
  gpudeck mcp --hub https://gpus.example.org
  claude mcp add gpudeck -- gpudeck mcp       for an assistant that starts MCP servers
"""
_PATIENCE = 60.0


@click.command("mcp", epilog=_EXAMPLES)
@hub_option
def command(*, hub: str) -> None:
    """Serve free GPUs, users, history, usage, runs, events, health and job reports to a language model.

    The assistant starts this command and talks to it over standard input and output. Tools that change something
    (reserve, release, watch) are available only with a token: log in with `gpudeck login`, or set $GPUDECK_TOKEN.
    Needs gpudeck[mcp]. The hub itself serves the same at /mcp.
    """
    need("mcp", "gpudeck mcp")
    from gpudeck.mcp.server import ClientRoutes, serve_stdio  # noqa: PLC0415 - an extra

    token = find_token(hub)
    asyncio.run(serve_stdio(ClientRoutes(Client(hub, _PATIENCE, token=token), has_token=token is not None)))
