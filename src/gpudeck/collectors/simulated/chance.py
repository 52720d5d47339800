"""Seeded randomness and the rhythm of working hours (UTC).

Nothing here keeps state between questions, so the answers do not depend on their order.
"""

from hashlib import blake2b
from math import pi, sin
from random import Random

_HOUR = 3600
_WEEK = 168


def seeded_random(*key: object) -> Random:
    return Random("/".join(map(str, key)))  # noqa: S311 - the numbers are meant to be repeatable


def draw(salt: int, number: int) -> float:
    """The `number`-th value, 0 ≤ value < 1, of the endless list that belongs to `salt`."""
    mixed = (salt * 0x9E3779B1 + number * 0x85EBCA77 + 0x27D4EB2F) & 0xFFFFFFFF
    mixed = ((mixed ^ (mixed >> 15)) * 0x2C1B3C6D) & 0xFFFFFFFF
    mixed = ((mixed ^ (mixed >> 12)) * 0x297A2D39) & 0xFFFFFFFF
    return (mixed ^ (mixed >> 15)) / 0x100000000


# Looking values up costs a tenth of computing them; a wave repeats only after 4096 of its swings.
_SWINGS = 4096
_ROLL = seeded_random("waves").uniform
KNOTS = tuple(_ROLL(-1.0, 1.0) for _ in range(_SWINGS + 1))


def wave(salt: int, t: float, seconds: float) -> float:
    """A smooth curve between -1 and 1 that takes a new direction every `seconds`; each salt has its own."""
    position = t / seconds + salt * 0.618034
    whole = int(position)
    part = position - whole
    knot = whole % _SWINGS
    before = KNOTS[knot]
    return before + (KNOTS[knot + 1] - before) * part * part * (3.0 - 2.0 * part)


def hex_name(*key: object) -> str:
    return blake2b("/".join(map(str, key)).encode(), digest_size=16).hexdigest()


def uuid_name(*key: object) -> str:
    digits = hex_name(*key)
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


def _by_hour(hour_of_week: int) -> float:
    days, hour = divmod(hour_of_week, 24)
    is_weekend = (days + 3) % 7 >= 5  # Unix time began on a Thursday
    awake = max(0.0, sin(pi * (hour - 6) / 17)) if 7 <= hour <= 22 else 0.0
    return (0.55 + 0.45 * awake) * (0.82 if is_weekend else 1.0)


ACTIVITY = tuple(_by_hour(hour) for hour in range(_WEEK))


def activity(t: float) -> float:
    return ACTIVITY[int(t // _HOUR) % _WEEK]


def later(t: float, seconds: float) -> float:
    """The moment by which `seconds` of full activity have passed since `t`: soon by day, long by night."""
    while True:
        pace = activity(t)
        left_of_hour = _HOUR - t % _HOUR
        if seconds <= left_of_hour * pace:
            return t + seconds / pace
        seconds -= left_of_hour * pace
        t += left_of_hour
