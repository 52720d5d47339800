"""gpudeck digest: preview a digest; stop and start your own."""

from typing import TYPE_CHECKING, Any

import click
import msgspec

from gpudeck.cli.hub_access import ask, find_name
from gpudeck.cli.options import hub_option
from gpudeck.cli.terminal import check_output
from gpudeck.client.answers import read_answer
from gpudeck.model.errors import UsageError
from gpudeck.model.text import clean
from gpudeck.model.usage import DigestPreview

if TYPE_CHECKING:
    from gpudeck.client import Client

_EXAMPLES = """\b
Examples:
  gpudeck digest --dry-run                        your digest of the last period, as text
  gpudeck digest --dry-run --html > digest.html   the same as mail clients get it
  gpudeck digest --dry-run --user '#ops' --every month   that of a channel, for admins
  gpudeck digest --off                            stop your digests
"""
_PATIENCE = 60.0
_MUTES = "/api/v1/me/mutes"
_TOPIC = "digest"


@click.command("digest", epilog=_EXAMPLES)
@click.option("--dry-run", is_flag=True, help="Print the digest as it would be sent. Nothing is sent.")
@click.option("--html", "as_html", is_flag=True, help="With --dry-run: as HTML.")
@click.option("--user", metavar="NAME", help="With --dry-run: of this account, or #CHANNEL; for admins.")
@click.option("--every", type=click.Choice(["week", "month"]), help="With --dry-run: of the last week or month.")
@click.option("--json", "as_json", is_flag=True, help="With --dry-run: print the hub's answer as JSON.")
@click.option("--off", "is_off", is_flag=True, help="Stop your own digests.")
@click.option("--on", "is_on", is_flag=True, help="Start your own digests again, with the next one.")
@hub_option
def command(
    *,
    dry_run: bool,
    as_html: bool,
    user: str | None,
    every: str | None,
    as_json: bool,
    is_off: bool,
    is_on: bool,
    hub: str,
) -> None:
    """Preview the digest of the last week or month, or stop and start your own digests.

    Exit code 1 if nothing would be sent, with the reason.
    """
    check_output()
    if dry_run + is_off + is_on != 1:
        raise UsageError("say what to do: --dry-run, --off or --on.")
    if not dry_run:
        ask(hub, lambda client: _choose(client, is_wanted=is_on))
        click.echo("You get digests again, if they are configured." if is_on else "You get no more digests.")
        return

    def preview(client: "Client") -> bytes:
        query = {"user": user or find_name(client)} | ({} if every is None else {"every": every})
        return client.get("/api/v1/digest", query)

    body = ask(hub, preview, _PATIENCE)
    found = read_answer(body, DigestPreview, hub)
    if as_json:
        click.echo(body)
    elif as_html:
        click.echo(found.html, nl=False)
    else:
        click.echo(found.text, nl=False)
    if found.not_sent is not None:
        click.echo(f"Not sent: {clean(found.not_sent)}", err=True)
        raise SystemExit(1)


def _choose(client: "Client", *, is_wanted: bool) -> None:
    muted: dict[str, Any] = msgspec.json.decode(client.get(_MUTES))
    others = [rule for rule in muted["rules"] if rule != _TOPIC]
    client.put(_MUTES, {"rules": others if is_wanted else [*others, _TOPIC]})
