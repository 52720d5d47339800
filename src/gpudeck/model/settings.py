"""Types of settings other than plain numbers, and the settings of TLS and limits, which hub and agent share. `config`
reads the marks (`extra`, `config_kind`), so neither package imports the other."""

import ipaddress
from pathlib import Path
from typing import Annotated, ClassVar

from msgspec import Meta, Struct, field

from gpudeck.model.errors import UsageError

Duration = Annotated[float, Meta(extra={"config": "duration"})]
"""Seconds. In the file: `10s`, `250ms`, `1d 6h`, or a plain number of seconds."""

Size = Annotated[int, Meta(extra={"config": "size"})]
"""Bytes. In the file: `512MiB` (binary units), `20GB` or `20G` (decimal units), or a plain number of bytes."""
Memory = Annotated[int, Meta(extra={"config": "memory"})]
"""Bytes of memory. In the file: `512M` or `2G`, in binary units; a number without a unit is rejected."""
Text = Annotated[str, Meta(min_length=1, max_length=1024)]
_Rate = Annotated[float, Meta(gt=0)]
_Count = Annotated[int, Meta(ge=1)]
_Time = Annotated[Duration, Meta(gt=0)]


class Address(Struct, frozen=True):
    """Where to listen. An empty host means every interface of the machine."""

    config_kind: ClassVar[str] = "address"

    host: str
    port: int

    def __str__(self) -> str:
        """The address as written in the file; an IPv6 host is in brackets."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def expand_home(setting: str, path: str) -> Path:
    """The path of a setting, with a leading `~` expanded. Raises UsageError for a user without a home."""
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        raise UsageError(f"{setting} is {path}, and this user has no home folder.", "Give the whole path.") from error


def file_stamp(file: Path) -> tuple[int, int, int] | None:
    """Changes when the file is modified or replaced; None if it cannot be read."""
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size


def is_loopback(host: str) -> bool:
    """Whether this name or address is a loopback one."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class TlsSettings(Struct, frozen=True):
    """The files of a certificate, in PEM. Files that change are read again within seconds; connections stay open."""

    cert_file: str
    """The certificate, followed by the intermediate certificates."""
    key_file: str
    """The private key of the certificate, without a passphrase."""
    client_ca_file: str | None = None
    """The CA of client certificates. Clients without a certificate of this CA are refused."""


class LimitsSettings(Struct, frozen=True):
    """Limits per address and in total. An IPv6 address counts as its /64.

    Too many requests are answered with 429; too many connections are refused.
    """

    requests_per_second: _Rate = 50.0
    """Requests and new connections per address."""
    requests_burst: _Count = 200
    """The burst of these."""
    reports_per_second: _Rate = 500.0
    """Reports per token and address; many hosts behind a gateway may share both."""
    reports_burst: _Count = 2_000
    """The burst of these."""
    logins_per_second: _Rate = 0.5
    """Login attempts per address; failed ones have further delays."""
    logins_burst: _Count = 20
    """The burst of these."""
    connections_per_address: _Count = 256
    """Open connections per address. Each agent behind a gateway keeps one."""
    connections: _Count = 50_000
    """Open connections in total. When all are used, the oldest one without a request is closed."""
    streams_per_address: _Count = 32
    """Open live views per address."""
    streams: _Count = 2_000
    """Open live views in total."""
    head_time: _Time = 20.0
    """The longest time for the head of a request, and for the TLS handshake."""
    body_time: _Time = 30.0
    """The longest time for the body of a request."""
    idle_time: _Time = 75.0
    """How long a connection stays open without a request."""
    unlimited: list[str] = field(default_factory=list)
    """Addresses or networks, such as 10.0.0.0/8, to which only the total limits apply."""

    def __post_init__(self) -> None:
        for network in self.unlimited:
            try:
                ipaddress.ip_network(network, strict=False)
            except ValueError:
                raise ValueError(f"unlimited names {network[:80]!r}, which is no address and no network") from None
