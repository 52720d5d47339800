"""What top asks a person: for words, and whether a process is really to be ended."""

from msgspec import Struct

from gpudeck.tui.ending import Victim


class Prompt(Struct):
    """A line that is being typed: a filter or a search. `before` is the filter to go back to."""

    kind: str
    text: str
    before: str


class Question(Struct, frozen=True):
    """Whether a process is to be ended."""

    victim: Victim
    is_hard: bool
    lines: tuple[str, ...]


def type_key(prompt: Prompt, key: str, character: str | None) -> None:
    """What a key does to the line."""
    if key == "backspace":
        prompt.text = prompt.text[:-1]
    elif key == "ctrl+u":
        prompt.text = ""
    elif character is not None and character.isprintable():
        prompt.text += character


def ask_to_end(victim: Victim) -> Question:
    return Question(victim, False, (f"End process {victim.pid}?", victim.command or "(its command is not known)"))


def ask_to_kill(victim: Victim) -> Question:
    """It was asked to end and did not."""
    lines = (f"Process {victim.pid} is still there.", "It can be ended at once, without saving anything (SIGKILL).")
    return Question(victim, True, lines)
