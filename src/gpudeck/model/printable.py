"""Text from outside without what a terminal acts upon: control characters, escapes, line separators, and marks that
turn text around."""


def clean(text: str) -> str:
    """Each such character as a replacement character."""
    return text if text.isprintable() else "".join(char if char.isprintable() else "�" for char in text)


def escape(text: str) -> str:
    """Each such character as its number, such as `\\x1b`: different texts stay different."""
    return text if text.isprintable() else "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)
