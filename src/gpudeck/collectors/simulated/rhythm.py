"""When people work: by day more than by night, on weekdays more than at weekends. Hours are UTC."""

from math import pi, sin

_HOUR = 3600
_WEEK = 168


def _by_hour(hour_of_week: int) -> float:
    days, hour = divmod(hour_of_week, 24)
    is_weekend = (days + 3) % 7 >= 5  # Unix time began on a Thursday
    awake = max(0.0, sin(pi * (hour - 6) / 17)) if 7 <= hour <= 22 else 0.0
    return (0.55 + 0.45 * awake) * (0.82 if is_weekend else 1.0)


_ACTIVITY = tuple(_by_hour(hour) for hour in range(_WEEK))


def activity(t: float) -> float:
    """How eager people are at that moment: 1 at the height of a weekday, never 0."""
    return _ACTIVITY[int(t // _HOUR) % _WEEK]


def later(t: float, seconds: float) -> float:
    """The moment by which `seconds` of full activity have passed since `t`: soon by day, long by night."""
    while True:
        pace = activity(t)
        left_of_hour = _HOUR - t % _HOUR
        if seconds <= left_of_hour * pace:
            return t + seconds / pace
        seconds -= left_of_hour * pace
        t += left_of_hour
