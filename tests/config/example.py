"""A settings type with every kind of field, for the tests of the configuration room."""

from typing import Annotated, Literal

from msgspec import Meta, Struct, field

from gpudeck.model.settings import Address, Duration, Size

Level = Literal["quiet", "normal", "verbose"]


class Hub(Struct, frozen=True):
    """Where the hub listens and how it judges."""

    read: Literal["open", "login"] = "login"
    """Who may look."""
    idle_after: Annotated[Duration, Meta(gt=0)] = 600.0
    """Time without work after which an occupied GPU counts as idle."""
    down_after: Duration | None = 60.0
    """Silence after which a host counts as down; nothing means never."""
    work_percent: Annotated[float, Meta(ge=0, le=100)] = 5.0
    """Utilization from which on a GPU counts as working."""
    cache_bytes: Annotated[Size, Meta(le=1024**4)] = 512 * 1024**2
    """Memory for answers."""
    workers: Annotated[int, Meta(ge=1, le=64)] = 4
    """How many processes | threads answer."""
    token: Annotated[str, Meta(min_length=8)] | None = None
    """What agents show."""
    window: str = "22:00"
    """When the nightly work begins."""


class Host(Struct, frozen=True):
    """One server."""

    name: Annotated[str, Meta(pattern="^[a-z0-9.-]+$", max_length=63)]
    """Its name."""
    address: Address | None = None
    """Where its agent listens."""
    labels: dict[str, str] = field(default_factory=dict)
    """Shown beside the name."""
    gpus: list[int] = field(default_factory=list)
    """Only these, counted from 0."""
    api_key: Annotated[str, Meta(max_length=10)] = ""
    """What it wants to see."""


class Quota(Struct, frozen=True):
    """What a group may use."""

    soft: int = 0
    """From here on they are asked."""
    hard: int = 8
    """From here on they are told."""

    def __post_init__(self) -> None:
        if self.soft > self.hard:
            raise ValueError(f"soft ({self.soft}) must not be\nabove hard ({self.hard})")


class Login(Struct, frozen=True):
    """An account whose own check talks too much."""

    user: str = ""
    password: str = ""

    def __post_init__(self) -> None:
        if self.user and self.user in self.password:
            raise ValueError(f"{self.password!r} contains the name {self.user}")


class Email(Struct, frozen=True):
    """Tell a mailbox."""

    to: list[str]
    """Whose."""
    level: Level = "normal"
    """How much."""


class Example(Struct, frozen=True, kw_only=True):
    """All of it."""

    listen: Address = Address("127.0.0.1", 8042)
    """Where to listen."""
    data_dir: str = "data"
    """Where to keep things."""
    demo: bool = False
    """Show a simulated fleet."""
    ratio: float = 0.5
    """Some share."""
    level: Level = "normal"
    """How much is logged."""
    retry: Duration | Literal["never"] = 10.0
    """How long to wait before the next try."""
    hub: Hub = Hub(workers=2)
    """The hub."""
    hosts: list[Host] = field(default_factory=list)
    """Servers."""
    quotas: dict[str, Quota] = field(default_factory=dict)
    """By group."""
    login: Login | None = None
    """An account."""
    notify: Annotated[list[Email], Meta(max_length=3)] = field(default_factory=list)
    """Whom to tell."""
    groups: list[str] = field(default_factory=lambda: ["lab"])
    """Which groups exist."""
