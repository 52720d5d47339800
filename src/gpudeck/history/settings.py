"""Settings of the history. Imports no store, because a base install reads the configuration too."""

from typing import Annotated, Final, Literal
from urllib.parse import urlsplit

from msgspec import Meta, Struct, field

from gpudeck.model.settings import Duration, Size

DAY = 86_400.0
YEAR = 365 * DAY
_Price = Annotated[float, Meta(ge=0, le=1e6)]
FILE: Final = "history.db"
DEMO_FILE: Final = "history-demo-{}.db"


class HistorySettings(Struct, frozen=True):
    """The data to keep, where, and for how long."""

    kind: Literal["embedded", "prometheus", "off"] = "embedded"
    """`embedded`: a file in the data folder. `prometheus`: a store that the site runs; who used what stays in the file.
    `off`: nothing is kept."""
    every: Annotated[Duration, Meta(ge=1, le=300)] = 10.0
    """How far apart samples of a host are, at least; what it reports in between is not kept."""
    raw: Annotated[Duration, Meta(ge=3600)] = 30 * DAY
    """How long each sample is kept."""
    quarter_hour: Annotated[Duration, Meta(ge=3600)] = 2 * YEAR
    """How long the quarter hours of each GPU are kept."""
    hour: Annotated[Duration, Meta(ge=3600)] = 10 * YEAR
    """How long the hours of hosts, people and the fleet, and the runs, are kept."""
    max_size: Annotated[Size, Meta(ge=10_000_000)] = 20_000_000_000
    """How large the file may become: the oldest samples go first."""
    min_free: Annotated[Size, Meta(ge=0)] = 500_000_000
    """With less room than this on the disk no samples are written; the hub goes on and says so."""
    write_url: str | None = None
    """Where samples are sent with `kind: prometheus`: the store's remote_write address."""
    read_url: str | None = None
    """Where questions are asked with `kind: prometheus`: the address before /api/v1/query_range."""
    token_file: str | None = None
    """A file with the bearer token for the store."""
    user: str | None = None
    """The name for the store, where it asks for name and password."""
    password_file: str | None = None
    """A file with the password for the store."""
    headers: dict[str, str] = field(default_factory=dict)
    """Headers for every request to the store, such as X-Scope-OrgID for a tenant."""
    ca_file: str | None = None
    """Whom to trust, where the store's certificate is of a private authority."""
    queue_size: Annotated[Size, Meta(ge=1_000_000)] = 2_000_000_000
    """How much waits on the disk while the store cannot be reached; the oldest goes first."""

    def __post_init__(self) -> None:
        if self.kind == "prometheus" and not (self.write_url and self.read_url):
            raise ValueError("kind: prometheus needs write_url and read_url, the store's two addresses")
        if (self.user is None) != (self.password_file is None):
            raise ValueError("user and password_file belong together: the store asks for both or for neither")
        if self.user is not None and self.token_file is not None:
            raise ValueError("the store takes a user with password_file, or token_file, not both")
        for name, url in (("write_url", self.write_url), ("read_url", self.read_url)):
            if url is not None and not _is_url(url):
                raise ValueError(
                    f"{name} has to be an address such as https://metrics.example/path, without a password"
                )


class UsageSettings(Struct, frozen=True):
    """Prices and groups of usage reports."""

    currency: Annotated[str, Meta(max_length=8)] = ""
    """What costs are counted in, such as EUR."""
    prices: dict[str, _Price] = field(default_factory=dict)
    """What a GPU-hour costs, by a part of the model's name: `H200: 3.20`. The longest part that fits counts."""
    groups: dict[str, list[str]] = field(default_factory=dict)
    """Groups of people: `vision: [alice, bob]`. Who is in none is counted by the Unix group of the login on the hub."""


def _is_url(text: str) -> bool:
    """Whether it is a valid address without credentials: messages would show them, and they have settings of their
    own."""
    try:
        parts = urlsplit(text.strip())
        is_port = parts.port is None or parts.port > 0
    except ValueError:
        return False
    return (
        parts.scheme in {"http", "https"}
        and bool(parts.hostname)
        and is_port
        and not parts.fragment
        and "@" not in parts.netloc
    )
