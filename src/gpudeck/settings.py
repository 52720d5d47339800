"""The configuration file: the settings of all packages together. Imports their types only, not the hub."""

import os
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import urlsplit

from msgspec import Meta, Struct, field
from msgspec.structs import force_setattr, replace

from gpudeck.agent.settings import AgentSettings
from gpudeck.alerts.notifiers.settings import NotifySettings, list_apprise_channels, mute_problem, route_problem
from gpudeck.alerts.settings import AlertSettings
from gpudeck.auth.settings import AuthSettings, UserEntries, groups_with, read_user, users_problem
from gpudeck.chat.settings import ChatSettings
from gpudeck.cluster.settings import ClusterSettings, cluster_problem
from gpudeck.compat.settings import CompatSettings, compat_problem
from gpudeck.config import ConfigMistakes, find_config, load_file
from gpudeck.digests.settings import DigestSettings
from gpudeck.discovery.registry import DiscoverySettings
from gpudeck.discovery.static import Hosts
from gpudeck.events.settings import EventSettings
from gpudeck.history.settings import HistorySettings, UsageSettings
from gpudeck.idle_policy.settings import IdlePolicySettings
from gpudeck.model.address import show_url, split_hubs
from gpudeck.model.errors import ConfigurationError, GpudeckError, UsageError
from gpudeck.model.gpu_state import FleetSettings
from gpudeck.model.plugins import Extra, is_installed, missing
from gpudeck.model.settings import Address, LimitsSettings, TlsSettings, expand_home, is_loopback
from gpudeck.model.text import Names
from gpudeck.queueing.settings import QueueSettings
from gpudeck.reservations.settings import ReservationSettings
from gpudeck.schedulers.registry import SchedulerSettings
from gpudeck.sources.base import PullSettings, ScrapeSettings, SshSettings

_DATA_DIR_HINT = "Set data_dir in gpudeck.yaml, or $GPUDECK_DATA_DIR, to a folder of your own."
VARIABLE = "GPUDECK_TOKEN"
ADMIN_FILE = "admin.token"


class Settings(Struct, frozen=True):
    """gpudeck.yaml. Everything has a default: without a file, the hub listens only on this machine."""

    listen: Address = Address("127.0.0.1", 8042)
    """The address on which the hub listens. Any address other than loopback requires `read`."""
    read: Literal["open", "login"] | None = None
    """Who can read a hub that others can reach. `open`: everyone who reaches it; `login`: users with an account."""
    write: Literal["login"] = "login"
    """Who can make changes: accounts and tokens with the required role. There is no other choice."""
    commands: Literal["everyone", "login", "admin", "owner"] = "everyone"
    """Who sees the command lines of processes: everyone who can read, users who are logged in, admins, or only the
    owner of each process and admins."""
    path_prefix: Annotated[
        str, Meta(pattern=r"^(?:/[^\s?#]*)?$", extra={"config_words": "a path that begins with /, such as /gpus"})
    ] = ""
    """The path below which a reverse proxy serves the hub, such as /gpus, if the proxy does not remove it."""
    public_url: (
        Annotated[
            str, Meta(pattern=r"^https?://[^\s?#]+$(?!\n)", extra={"config_words": "the page's address, https://…"})
        ]
        | None
    ) = None
    """The address of the page for users, with the path if there is one. Providers of `login.oidc` send users back to
    it; messages link to it unless `notify.page` is set."""
    data_dir: str | None = None
    """The folder for the files of hub and agent; the default is gpudeck in $XDG_DATA_HOME or ~/.local/share.
    $GPUDECK_DATA_DIR overrides it."""
    database: (
        Annotated[str, Meta(pattern=r"^postgresql://", extra={"config_words": "a URL that begins with postgresql://"})]
        | None
    ) = None
    """A PostgreSQL server for accounts, tokens and the audit log; if not given, a file in data_dir."""
    token_file: str | None = None
    """The file with the shared agent token; if not given, it is created in the data folder."""
    local: Literal["auto", "never"] = "auto"
    """Whether the hub monitors its own machine, if that has GPUs."""
    demo: Literal["auto", "never"] = "auto"
    """Whether a hub on a machine without GPUs shows a simulated fleet until the first real host reports or is added."""
    tls: TlsSettings | None = None
    """The hub's certificate; without one it uses plain HTTP, for use behind a reverse proxy."""
    limits: LimitsSettings = field(default_factory=LimitsSettings)
    login: AuthSettings = field(default_factory=AuthSettings)
    users: UserEntries = field(default_factory=dict)
    """Accounts with their logins on the hosts, as a list, or with more about the user. Without an entry an account
    has the login of its own name."""
    hosts: Hosts = field(default_factory=list)
    """Hosts to monitor or to expect; hosts that push do not have to be listed."""
    discovery: DiscoverySettings = field(default_factory=DiscoverySettings)
    names: Names = field(default_factory=Names)
    ssh: SshSettings = field(default_factory=SshSettings)
    pull: PullSettings = field(default_factory=PullSettings)
    scrape: ScrapeSettings = field(default_factory=ScrapeSettings)
    fleet: FleetSettings = field(default_factory=FleetSettings)
    history: HistorySettings = field(default_factory=HistorySettings)
    usage: UsageSettings = field(default_factory=UsageSettings)
    events: EventSettings = field(default_factory=EventSettings)
    schedulers: SchedulerSettings = field(default_factory=SchedulerSettings)
    reservations: ReservationSettings = field(default_factory=ReservationSettings)
    idle_policy: IdlePolicySettings = field(default_factory=IdlePolicySettings)
    queue: QueueSettings = field(default_factory=QueueSettings)
    alerts: AlertSettings = field(default_factory=AlertSettings)
    notify: NotifySettings = field(default_factory=NotifySettings)
    digests: DigestSettings = field(default_factory=DigestSettings)
    chat: ChatSettings = field(default_factory=ChatSettings)
    compat: CompatSettings = field(default_factory=CompatSettings)
    agent: AgentSettings = field(default_factory=AgentSettings)
    cluster: ClusterSettings | None = None
    """Several hubs that serve one fleet; see docs/high-availability.md."""

    def __post_init__(self) -> None:
        problem = exposure_problem(self.listen, self.read) or users_problem(self.users)
        problem = problem or mute_problem({name: read_user(name, entry).mute for name, entry in self.users.items()})
        problem = problem or route_problem(self.notify.routes, self.alerts.own_rules)
        if unknown := [name for name in self.digests.channels if name not in self.notify.channels]:
            problem = problem or f"digests.channels names {unknown[0]}, which is not in notify.channels"
        problem = problem or cluster_problem(self.cluster, self.database, self.history.kind)
        problem = problem or compat_problem(_ways(self.hosts, self.discovery), self.compat)
        problem = problem or redirect_problem(self)
        if problem:
            raise ValueError(problem)
        if self.notify.page is None:
            force_setattr(self, "notify", replace(self.notify, page=self.public_url))


def redirect_problem(settings: Settings) -> str | None:
    """Why providers could not redirect users back; None if they can."""
    url = settings.public_url
    if not settings.login.oidc:
        return None
    if url is None:
        return "public_url is missing: providers of login.oidc send users back to it"
    try:
        parts = urlsplit(url)
        is_page = parts.port != 0 and "@" not in parts.netloc and bool((parts.hostname or "").strip("."))
    except ValueError:
        is_page = False
    if not is_page:
        return f"public_url: {show_url(url)} is not the address of a page, such as https://gpus.example.org/gpus"
    if parts.scheme == "http" and not is_loopback(parts.hostname or ""):
        return f"public_url: {url} has to begin with https://, as a login over plain HTTP can be read on its way"
    if settings.path_prefix and parts.path.rstrip("/") != settings.path_prefix.rstrip("/"):
        return f"public_url: {url} has another path than path_prefix, which is {settings.path_prefix}"
    return None


def _ways(hosts: Hosts, discovery: DiscoverySettings) -> set[str]:
    """The sources of the configured hosts and host lists."""
    lists = (discovery.hosts_files, discovery.file_sd, discovery.http_sd, discovery.consul)
    return {named.via for named in (*hosts, *(each for one in lists for each in one))}


def exposure_problem(listen: Address, read: str | None, file: str = "") -> str | None:
    """Why the hub may not listen there without the setting `read`; None if it may. `file` is where to add it, if
    known."""
    if read is not None or is_loopback(listen.host):
        return None
    return (
        f"listening on {listen} lets other machines reach the hub, and `read` is not set; add the line "
        f"`read: open` (everyone who reaches it can read) or `read: login` (only users with an account)"
        f"{f' to {file}' if file else ''}, or listen on 127.0.0.1"
    )


def find_missing_extras(settings: Settings) -> list[UsageError]:
    """An error for each extra that these settings need and that is not installed. Reads files with channel
    addresses."""
    channels = ", ".join(list_apprise_channels(settings.notify))
    wanted: list[tuple[Extra, str]] = []
    if settings.database is not None:
        wanted.append(("postgresql", "the setting `database`"))
    if settings.cluster is not None:
        wanted.append(("cluster", "the setting `cluster`"))
    if settings.chat.slack is not None:
        wanted.append(("slack", "the setting `chat.slack`"))
    if channels:
        wanted.append(("apprise", f"the setting `notify.channels` ({channels})"))
    return [missing(extra, feature) for extra, feature in wanted if not is_installed(extra)]


def grouped_usage(settings: Settings) -> UsageSettings:
    """The settings of usage reports, with the groups of `users` and of `usage.groups`."""
    return replace(settings.usage, groups=groups_with(settings.usage.groups, settings.users))


def find_file(config: Path | None) -> Path | None:
    """The configuration file that would be read, if there is one. Raises ConfigurationError."""
    try:
        return find_config(config, os.environ, _working_folder(), _home())
    except ConfigMistakes as mistakes:
        raise ConfigurationError(str(mistakes)) from mistakes


def load_settings(config: Path | None) -> tuple[Settings, Path | None]:
    """The settings and their file, if there is one. Raises ConfigurationError with all mistakes."""
    file = find_file(config)
    try:
        return (Settings(), None) if file is None else (load_file(file, Settings), file)
    except ConfigMistakes as mistakes:
        raise ConfigurationError(str(mistakes)) from mistakes


def own_address(settings: Settings) -> str:
    """The URL of the hub with these settings on its own machine."""
    scheme = "http" if settings.tls is None else "https"
    listen = settings.listen
    host = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}.get(listen.host, listen.host)  # noqa: S104
    return f"{scheme}://{Address(host, listen.port)}{settings.path_prefix}"


def find_data_dir(settings: Settings) -> Path:
    """The data folder, created if needed. Raises UsageError if it is not writable."""
    folder = choose_data_dir(settings)
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        probe = folder / f".write-test-{os.getpid()}"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise UsageError(f"the data folder {folder} cannot be written: {error.strerror}.", _DATA_DIR_HINT) from error
    return folder


def choose_data_dir(settings: Settings) -> Path:
    named = os.environ.get("GPUDECK_DATA_DIR") or settings.data_dir
    shared = os.environ.get("XDG_DATA_HOME")
    try:
        if named:
            return Path(named).expanduser()
        return (Path(shared) if shared else Path.home() / ".local" / "share") / "gpudeck"
    except RuntimeError as error:
        raise UsageError("this user has no home folder for the hub's files.", _DATA_DIR_HINT) from error


def choose_outbox_dir(settings: Settings) -> str:
    """The folder in which the agent keeps reports, or `none`; works for a user without a home folder."""
    named = settings.agent.outbox_dir
    try:
        if named is None:
            return str(choose_data_dir(settings) / "outbox")
    except UsageError:
        return "none"
    return named if named == "none" else str(expand_home("outbox_dir", named))


def _home() -> Path | None:
    """None for a user unknown to the system, as in many containers, if $HOME is not set either."""
    try:
        return Path.home()
    except RuntimeError:
        return None


def _working_folder() -> Path | None:
    """None if it was deleted."""
    try:
        return Path.cwd()
    except FileNotFoundError:
        return None


def find_own_token(hub: str, config: Path | None = None) -> str | None:
    """The token of this machine's hub, or None. It is sent to no other machine; a user who can read its file has full
    access there anyway."""
    if named := os.environ.get(VARIABLE):
        return named
    if not all(is_loopback(urlsplit(one).hostname or "") for one in split_hubs(hub)):
        return None
    try:
        return (choose_data_dir(load_settings(config)[0]) / ADMIN_FILE).read_text().strip() or None
    except (OSError, UnicodeError, GpudeckError):
        return None
