"""Every error gpudeck raises on purpose.

    GpudeckError                 something a person can act on; its text names the thing, the place, the next step
    ├── UsageError               wrong arguments or configuration (exit code 2)
    │   └── ConfigurationError   mistakes in the configuration file, one located line each
    ├── Unreachable              the hub does not answer (exit code 3)
    ├── ReportRefused            a report that cannot be taken, with the HTTP answer it deserves
    ├── RequestRefused           a request that cannot be met, with the HTTP answer it deserves
    └── PluginError              a collector, source, provider or notifier failed; its kind decides what the host does
        ├── Absent               not here: stay quiet, look again rarely
        ├── Temporary            back off, try again
        ├── Refused              credentials or permissions: a person has to act
        └── Wrong                our bug or a broken contract: log the full trace

A message never contains a secret.
"""

import sys


class GpudeckError(Exception):
    """Something a person can act on. `hint` is the next step, shown after the message."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message} {self.hint}".rstrip()

    if sys.version_info < (3, 11):

        def add_note(self, note: str) -> None:
            self.__notes__ = [*getattr(self, "__notes__", ()), note]


class UsageError(GpudeckError):
    """Wrong arguments or configuration."""


class ConfigurationError(UsageError):
    """Mistakes in the configuration file, one per line, each with its file and line."""


class Unreachable(GpudeckError):
    """The hub does not answer."""


class ReportRefused(GpudeckError):
    """A report that cannot be taken. `status` is the HTTP answer, `code` the word counted and sent back."""

    def __init__(self, status: int, code: str, message: str, hint: str = "") -> None:
        super().__init__(message, hint)
        self.status = status
        self.code = code


class RequestRefused(GpudeckError):
    """A user's request is invalid or not allowed. `status` is the HTTP status, `code` is for programs. `retry_after` is
    in seconds; 0: a retry does not help."""

    def __init__(self, status: int, code: str, message: str, hint: str = "", retry_after: float = 0.0) -> None:
        super().__init__(message, hint)
        self.status = status
        self.code = code
        self.retry_after = retry_after


class PluginError(GpudeckError):
    """A collector, source, provider or notifier failed."""


class Absent(PluginError):
    """The plugin's data source is not on this machine."""


class Temporary(PluginError):
    """It may work again without intervention."""


class Refused(PluginError):
    """Credentials or permissions are missing."""


class Wrong(PluginError):
    """A bug of ours, or a broken contract."""


def exit_code(error: GpudeckError) -> int:
    """The exit code of a command that ends with this error."""
    if isinstance(error, UsageError):
        return 2
    return 3 if isinstance(error, Unreachable) else 1
