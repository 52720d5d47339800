"""What SIGHUP means: read the settings again. From a terminal that is gone it means what it always did: the end."""

import os


class Terminal:
    """The terminal that this process was started in, if there was one."""

    def __init__(self) -> None:
        self._was_there = _opens()

    def is_gone(self) -> bool:
        """Whether it was there and has been closed since: the hangup is then its own, and nobody's wish."""
        return self._was_there and not _opens()


def _opens() -> bool:
    try:
        os.close(os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY))
    except OSError:
        return False
    return True
