"""gpudeck completion: what teaches a shell to complete commands, options, words and the names of hosts."""

import click

_EXAMPLES = """\b
Examples:
  gpudeck completion bash > ~/.local/share/bash-completion/completions/gpudeck
  gpudeck completion zsh > ~/.zfunc/_gpudeck      with ~/.zfunc in $fpath before compinit
  gpudeck completion fish > ~/.config/fish/completions/gpudeck.fish
  source <(gpudeck completion bash)               for this shell alone
"""
VARIABLE = "_GPUDECK_COMPLETE"
"""Click looks for it: the shell asks with it."""


@click.command("completion", epilog=_EXAMPLES)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def command(shell: str) -> None:
    """Print a script that makes SHELL complete the commands of gpudeck, their options, and the names of hosts.

    Names come from the hub ($GPUDECK_HUB, or --hub on the line). They are kept for a minute in ~/.cache/gpudeck; a hub
    that takes longer than a second, or is not there, offers none and says nothing.
    """
    from click.shell_completion import ShellComplete, get_completion_class  # noqa: PLC0415 - nothing else needs it

    made = get_completion_class(shell)
    if made is None:
        raise click.UsageError(f"{shell} is not known to this version of click.")
    # The scripts of all three are as their class has them. That of bash would start a bash first to ask its version.
    click.echo(ShellComplete.source(made(click.Command("gpudeck"), {}, "gpudeck", VARIABLE)).strip())
