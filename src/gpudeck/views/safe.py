"""Text from outside as a terminal may show it."""

from gpudeck.model.printable import clean

__all__ = ["clean", "in_ascii"]

_PLAIN = str.maketrans("●■◐◆▲…–·×█░╭╮╰╯│├┤─�", "o#+*^~--x#.++++|++-?") | {ord("°"): " ", ord("µ"): "u"}


def in_ascii(text: str) -> str:
    """Our own signs for terminals that know ASCII alone, each as wide as before. Other characters stay as they are."""
    return text.translate(_PLAIN)
