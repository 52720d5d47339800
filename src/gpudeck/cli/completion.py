"""gpudeck completion: what teaches a shell to complete commands, options, words and the names of hosts."""

import click

_EXAMPLES = """\b
Examples:
  gpudeck completion bash > ~/.local/share/bash-completion/completions/gpudeck
  gpudeck completion zsh > ~/.zfunc/_gpudeck      with ~/.zfunc in $fpath before compinit
  gpudeck completion fish > ~/.config/fish/completions/gpudeck.fish
  source <(gpudeck completion bash)               for this shell only
"""
VARIABLE = "_GPUDECK_COMPLETE"
"""Click looks for it: the shell asks with it."""


@click.command("completion", epilog=_EXAMPLES)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def command(shell: str) -> None:
    """Print a script with which SHELL completes commands, options and hostnames of gpudeck.

    Hostnames come from the hub ($GPUDECK_HUB, or --hub on the line). They are cached for a minute in ~/.cache/gpudeck.
    If the hub does not answer within a second, no hostnames are offered.
    """
    from click.shell_completion import ShellComplete, get_completion_class  # noqa: PLC0415 - nothing else needs it

    made = get_completion_class(shell)
    if made is None:
        raise click.UsageError(f"{shell} is not known to this version of click.")
    # The scripts of all three are as their class has them. That of bash would start a bash first to ask its version.
    click.echo(ShellComplete.source(made(click.Command("gpudeck"), {}, "gpudeck", VARIABLE)).strip())
