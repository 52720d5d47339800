"""Search words as arguments (`gpudeck show free -alice '>40G'`), and shell completion of words and hostnames."""

import contextlib
import re
import threading
from typing import NamedTuple

import click
import msgspec

from gpudeck.model.address import DEFAULT_HUB
from gpudeck.model.errors import GpudeckError, UsageError
from gpudeck.model.view import Fleet
from gpudeck.views.filter import KEYWORDS, choose_json, choose_words, explain_unclear, join, propose

HELP = """\b
WORDS work as in the page's search. A GPU must match all of them:
  free busy idle allocated reserved  the GPU's state; several mean any of them
  drained unknown
  up late down never_seen         the host's status
  warning critical                the GPU's health
  nobody                          nobody is using the GPU
  80G '>40G' '<=24G'              the GPU's memory in GiB, as it is shown
  user:ann host:gpu07 model:h200  text in this field only
  command:train rack:r01          a word of a command; any label of a host
  gpu05:3                         GPU 3 of the host gpu05
  xid xid79                       a fault that the driver reported in the last day
  -word                           excludes matches: -free, -alice, -down
  gpu07 gpu08                     whole hostnames: these hosts and no others
  anything else                   text in host, label, model, user, UUID or
                                  address; the beginning of a word of a command"""
_NEGATED = re.compile(r"-[^-].+")
_SECONDS = re.compile(r"[0-9]+(?:\.[0-9]+)?s?")
HUB_TIMEOUT_SECONDS = 2.0
"""How long a shell waits for hostnames."""
_SAFE = re.compile(r"[A-Za-z0-9._-]{1,253}")
"""Valid hostnames. Nothing else in a hub's answer reaches a shell."""


class FleetDocument(NamedTuple):
    """A fleet or a part of it, and the whole document as the hub sent it, which may have fields that this version does
    not know. None without a hub."""

    fleet: Fleet
    document: bytes | None = None

    def encoded(self, *, is_part: bool) -> bytes:
        """As JSON. `is_part`: only the hosts and GPUs of `fleet`."""
        if self.document is None:
            return msgspec.json.encode(self.fleet)
        return choose_json(self.document, self.fleet) if is_part else self.document


class SearchCommand(click.Command):
    """Accepts `-word` as an argument although it looks like an option, and `--watch` without a value."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        end = args.index("--") if "--" in args else len(args)
        before, words = _give_interval(args[:end]), args[end + 1 :]
        options = {name for parameter in self.get_params(ctx) for name in parameter.opts}
        negated = [arg for arg in before if _NEGATED.fullmatch(arg)]
        for word in negated:
            if f"-{word}" in options and not ctx.resilient_parsing:
                raise UsageError(f"{word} is a word to leave out.", f"The option is -{word}.")
        rest = [arg for arg in before if arg not in negated]
        return super().parse_args(ctx, [*rest, "--", *negated, *words] if negated or words else rest)


def _give_interval(args: list[str]) -> list[str]:
    """`--watch free` refreshes every two seconds, `--watch 5 free` every five."""
    given: list[str] = []
    rest = iter(args)
    for arg in rest:
        if arg != "--watch":
            given.append(arg)
            continue
        value = next(rest, "")
        is_interval = bool(_SECONDS.fullmatch(value))
        given += [f"--watch={value if is_interval else '2'}", *([value] if value and not is_interval else [])]
    return given


def complete_search(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """Completions for a word: keywords and hostnames that are not on the line yet."""
    # click takes a negated word for an option, and does not call this.
    names = [] if ctx.params.get("local") or ctx.params.get("ssh") else complete_hosts(ctx, _, incomplete)
    given = ctx.params.get("words") or ()
    return [word for word in (*KEYWORDS, *names) if word.startswith(incomplete) and word not in given]


def complete_hosts(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """Completions for a hostname."""

    return [name for name in find_names(ctx.params.get("hub") or DEFAULT_HUB) if name.startswith(incomplete)]


def choose(fleet: Fleet, words: tuple[str, ...]) -> Fleet:
    """The matching part. Raises UsageError for a word that is not understood."""
    part, query = choose_words(fleet, join(words))
    if query.unclear:
        raise UsageError(f"{explain_unclear(query.unclear[0])}.", "`gpudeck show --help` lists the words.")
    return part


def nothing_fits(fleet: Fleet, words: tuple[str, ...]) -> GpudeckError:
    """The error for a search without a match, with suggestions."""
    near = propose(fleet, join(words))
    hint = f"Did you mean {' or '.join(near)}?" if near else "`gpudeck show` shows all."
    return GpudeckError(f"nothing matches {join(words)}.", hint)


def find_names(hub: str) -> list[str]:
    """Hostnames, or none after two seconds. Never raises and never prints. Runs in a thread that may be abandoned,
    because name resolution has no deadline."""
    names: list[str] = []
    asking = threading.Thread(target=_ask, args=(hub, names), daemon=True)
    asking.start()
    asking.join(HUB_TIMEOUT_SECONDS)
    return names


def _ask(hub: str, names: list[str]) -> None:
    from gpudeck.cli.hub_access import ask_table  # noqa: PLC0415 - the commands that complete nothing need no HTTP

    with contextlib.suppress(GpudeckError):
        names += [host.name for host in ask_table(hub).fleet.hosts if _SAFE.fullmatch(host.name)]


_EXAMPLES = """\b
Examples:
  gpudeck completion bash > ~/.local/share/bash-completion/completions/gpudeck
  gpudeck completion zsh > ~/.zfunc/_gpudeck      with ~/.zfunc in $fpath before compinit
  gpudeck completion fish > ~/.config/fish/completions/gpudeck.fish
  source <(gpudeck completion bash)               for this shell only
"""
VARIABLE = "_GPUDECK_COMPLETE"
"""The environment variable with which a shell asks click for completions."""


@click.command("completion", epilog=_EXAMPLES)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion_command(shell: str) -> None:
    """Print a script with which SHELL completes commands, options and hostnames of gpudeck.

    Hostnames come from the hub ($GPUDECK_HUB, or --hub on the line). If it does not answer within two seconds, no
    hostnames are offered.
    """
    from click.shell_completion import ShellComplete, get_completion_class  # noqa: PLC0415 - nothing else needs it

    made = get_completion_class(shell)
    if made is None:
        raise click.UsageError(f"{shell} is not known to this version of click.")
    # The base method formats all three scripts. The one for bash would first start a bash to get its version.
    click.echo(ShellComplete.source(made(click.Command("gpudeck"), {}, "gpudeck", VARIABLE)).strip())
