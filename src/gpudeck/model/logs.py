"""Log lines of agents and hubs, on standard error."""

import logging
import sys

from gpudeck.model.address import mask_password
from gpudeck.model.text import clean

_NOISY = ("urllib3", "uvicorn", "asyncio", "asyncssh", "httpx", "httpcore", "alembic", "sqlalchemy", "aiosqlite")


class OneLine(logging.Formatter):
    """A message is one clean line without passwords in URLs; only the traceback of a bug may be longer."""

    def format(self, record: logging.LogRecord) -> str:
        stamp = self.formatTime(record, "%H:%M:%S")
        level = "" if record.levelno <= logging.INFO else f"{record.levelname.lower()}: "
        trace = f"\n{self.formatException(record.exc_info)}" if record.exc_info else ""
        return f"{stamp} {level}{mask_password(clean(record.getMessage()))}{trace}"


def start_logging(verbose: bool) -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(OneLine())
    logging.basicConfig(level=logging.DEBUG if verbose else logging.INFO, handlers=[handler])
    for noisy in _NOISY:
        logging.getLogger(noisy).setLevel(logging.WARNING)
