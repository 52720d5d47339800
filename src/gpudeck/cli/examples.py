"""Examples in the help: a group has them all, and each of its commands those that are about it."""

import click


def share_examples(group: click.Group) -> None:
    """Give each command of a group the lines of the group's examples that call it."""
    lines = (group.epilog or "").splitlines()
    for name, command in group.commands.items():
        own = [line for line in lines if f"gpudeck {group.name} {name} " in f"{line} "]
        if own and command.epilog is None:
            command.epilog = "\n".join(["\b", "Examples:", *own])
