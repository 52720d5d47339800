"""Text from outside as a terminal may show it."""


def clean(text: str) -> str:
    """Without anything a terminal would act upon: control characters, escapes, and marks that turn text around."""
    return text if text.isprintable() else "".join(char if char.isprintable() else "�" for char in text)


_PLAIN = str.maketrans("●■◐◆▲…–·×█░╭╮╰╯│├┤─�", "o#+*^~--x#.++++|++-?") | {ord("°"): " ", ord("µ"): "u"}


def in_ascii(text: str) -> str:
    """Our own signs for terminals that know ASCII alone, each as wide as before. Other characters stay as they are."""
    return text.translate(_PLAIN)
