"""Options that several commands share: the hub, the configuration file, which GPUs are wanted, labels; and which hub
a command asks."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource

from gpudeck import hub_lookup
from gpudeck.hub_lookup import HubChoice, check_address
from gpudeck.model.address import DEFAULT_HUB
from gpudeck.model.errors import UsageError
from gpudeck.model.event import SEVERITIES
from gpudeck.model.gpu_request import MAX_GPUS, GpuRequest, read_memory
from gpudeck.model.settings import Address

if TYPE_CHECKING:
    from gpudeck.collectors.base import CollectorSettings

Decorated = TypeVar("Decorated", bound=Callable[..., Any])
# Where gpudeck.config.find_config looks too.
_CONFIGURATIONS = ("gpudeck.yaml", "~/.config/gpudeck/gpudeck.yaml", "/etc/gpudeck/gpudeck.yaml")


def complete_hosts(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """What a shell offers for the name of a host."""
    from gpudeck.cli.search import complete_hosts as complete  # noqa: PLC0415 - only shells ask

    return complete(ctx, parameter, incomplete)


def find_hub(option: str | None = None) -> HubChoice:
    """The hub to ask; `option` is what --hub says. Raises UsageError for an address that makes no sense, and
    ConfigurationError for a configuration with mistakes."""
    return hub_lookup.find_hub(option, find_configured_hub)


def has_configuration() -> bool:
    """Whether a configuration would be found. Most machines have none: what reads it need not be loaded there."""
    is_named = bool(os.environ.get("GPUDECK_CONFIG"))
    return is_named or any(os.path.exists(os.path.expanduser(path)) for path in _CONFIGURATIONS)  # noqa: PTH110, PTH111


def find_collector_settings() -> "CollectorSettings":
    """What the configuration says of the reading of this machine, as for its agent."""
    if not has_configuration():
        from gpudeck.collectors.base import CollectorSettings  # noqa: PLC0415 - an answer of the hub needs none

        return CollectorSettings()
    from gpudeck.settings import load_settings  # noqa: PLC0415 - see above

    return load_settings(None)[0].agent


def find_configured_hub() -> HubChoice | None:
    """What the configuration found says: `agent.hub`, or where the hub of this machine listens. None without a file,
    and for one that this user may not read. Raises ConfigurationError."""
    if not has_configuration():
        return None
    from gpudeck.settings import find_file, load_settings, own_address  # noqa: PLC0415 - see above

    found = find_file(None)
    if found is None or not os.access(found, os.R_OK):
        return None
    settings, file = load_settings(None)
    if settings.agent.hubs:
        return HubChoice(check_address(settings.agent.hubs), f"agent.hub in {file}")
    return HubChoice(own_address(settings), f"listen in {file}")


def _find_hub(ctx: click.Context, _: click.Parameter, value: str | None) -> str:
    """The address of the hub to ask. Not looked up where none is asked: with --local or --ssh."""
    if value is None and (ctx.params.get("local") or ctx.params.get("ssh")):
        return DEFAULT_HUB
    return find_hub(value).url


hub_option = click.option(
    "--hub",
    metavar="URL",
    callback=_find_hub,
    help="The hub's address, such as hub:8042, or hub1,hub2: the first that answers is used. "
    "[default: $GPUDECK_HUB, the login, the configuration, this machine]",
)
local_option = click.option("--local", is_flag=True, is_eager=True, help="Read only this machine, without a hub.")
config_option = click.option(
    "--config",
    type=click.Path(path_type=Path),
    help="The configuration file. [default: ./gpudeck.yaml, ~/.config/gpudeck/, /etc/gpudeck/]",
)
hub_config_option = click.option("--config", type=click.Path(path_type=Path), help="The hub's configuration file.")


def _combine(*options: Callable[[Any], Any]) -> Callable[[Decorated], Decorated]:
    """One decorator that adds these options, in this order."""

    def decorate(function: Decorated) -> Decorated:
        for option in reversed(options):
            function = option(function)
        return function

    return decorate


mig_options = _combine(
    click.option("--mig", is_flag=True, help="Only MIG slices."),
    click.option("--allow-mig", is_flag=True, help="With --memory: also MIG slices that have that much."),
)
kind_options = _combine(
    click.option("--memory", metavar="AMOUNT", help="Only GPUs with at least this much memory, in GiB: 40G."),
    click.option("--model", metavar="TEXT", help="Only GPUs whose model name contains TEXT: H200."),
    click.option("--same-host", is_flag=True, help="All GPUs on one host."),
    click.option("--host", metavar="HOST", help="Only GPUs of this host.", shell_complete=complete_hosts),
    mig_options,
)
place_options = _combine(hub_option, local_option)


def period_options(default: str) -> Callable[[Decorated], Decorated]:
    """--since, with this default, and --until: see cli.period."""
    since = "The start: 12h (ago), 2026-10-01, today, yesterday, this-month or last-month."
    until = "The end; a date or a month is included. [default: now]"
    return _combine(
        click.option("--since", metavar="TIME", default=default, show_default=True, help=since),
        click.option("--until", metavar="TIME", help=until),
    )


def read_address(text: str) -> Address:
    """The value of --listen. Raises UsageError."""
    from gpudeck.config import parse_address  # noqa: PLC0415 - few commands listen

    try:
        return Address(*parse_address(text))
    except ValueError as error:
        raise UsageError(f"--listen: {error}.") from error


def read_wanted(
    gpus: int, memory: str | None, model: str | None, host: str | None, *, mig: bool, allow_mig: bool, **others: Any
) -> GpuRequest:
    """From the options; `others` are fields of the request. Raises UsageError."""
    if allow_mig and memory is None:
        raise UsageError("--allow-mig needs --memory.", "--mig asks for any slice.")
    if mig and allow_mig:
        raise UsageError("--mig and --allow-mig exclude each other.")
    if not 1 <= gpus <= MAX_GPUS:
        raise UsageError(f"--gpus must be between 1 and {MAX_GPUS}.")
    for option, text in (("--model", model), ("--host", host)):
        if text is not None and not 1 <= len(text) <= 256:
            raise UsageError(f"{option} must have between 1 and 256 characters.")
    least = read_memory(memory, "--memory")
    allows = allow_mig and bool(least)
    return GpuRequest(gpus=gpus, memory_bytes=least, model=model, host=host, mig=mig, allow_mig=allows, **others)


def parse_labels(labels: tuple[str, ...]) -> dict[str, str]:
    """Of `--label KEY=VALUE`. Raises UsageError."""
    for label in labels:
        if "=" not in label or label.startswith("="):
            raise UsageError(f"--label {label!r} must be KEY=VALUE.")
    return dict(label.split("=", 1) for label in labels)


def severities_from(lowest: str | None) -> str | None:
    """That severity and the worse ones, as the API has them; None for all."""
    return lowest and ",".join(SEVERITIES[SEVERITIES.index(lowest) :])


def refuse_options(needed: str, *names: str) -> None:
    """Raises UsageError if one of these options was given, as they have no effect without `needed`."""
    context = click.get_current_context()
    for option in context.command.params:
        if option.name in names and context.get_parameter_source(option.name or "") is ParameterSource.COMMANDLINE:
            raise UsageError(f"{option.opts[0]} needs {needed}.")


def check_place(*, local: bool) -> None:
    """Raises UsageError where both --hub and --local are given."""
    context = click.get_current_context(silent=True)
    source = None if context is None else context.get_parameter_source("hub")
    if local and source is ParameterSource.COMMANDLINE:
        raise UsageError("--hub and --local exclude each other.")
