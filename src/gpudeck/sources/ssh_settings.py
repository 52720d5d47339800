"""What an operator decides about hosts that are read over SSH. Needs no SSH library."""

from typing import Annotated, Literal

from msgspec import Meta, Struct, field

from gpudeck.collectors.redaction import Commands
from gpudeck.collectors.settings import DISPLAY_SERVERS, CollectorSettings
from gpudeck.model.settings import Duration


class SshSettings(Struct, frozen=True):
    """How hosts are reached over SSH. What is not set here is as ~/.ssh/config says, host by host."""

    user: str | None = None
    """Who logs in; without it whom ~/.ssh/config names, else the user that the hub runs as."""
    port: Annotated[int, Meta(ge=1, le=65535)] | None = None
    """The port of sshd; without it what ~/.ssh/config says, else 22."""
    key_files: list[str] = field(default_factory=list)
    """Private keys to log in with, and no others; without any those of ~/.ssh and of the ssh-agent."""
    agent: bool = True
    """Whether keys of the ssh-agent are used, where $SSH_AUTH_SOCK names one."""
    password_file: str | None = None
    """A file whose first line is the password, for hosts that take no key."""
    known_hosts: list[str] = field(default_factory=list)
    """Files with the host keys that are believed; without any ~/.ssh/known_hosts and /etc/ssh/ssh_known_hosts."""
    host_keys: Literal["strict", "accept-new"] = "strict"
    """What happens with a host key that no file has: strict refuses it, accept-new writes it to the first file."""
    config_file: str | None = None
    """The file to use in place of ~/.ssh/config; /dev/null for none."""
    jump: str | None = None
    """The host, or hosts with commas between, through which all others are reached: [user@]host[:port]."""
    interval: Annotated[Duration, Meta(ge=1.0, le=3600.0)] = 5.0
    """How often a host is read."""
    deadline: Annotated[Duration, Meta(ge=3.0, le=600.0)] = 10.0
    """How long one reading may take, the login included."""
    handshakes: Annotated[int, Meta(ge=1, le=1000)] = 32
    """How many logins are under way at once: each costs the hub some milliseconds of CPU."""
    commands: Commands = "redacted"
    """How much of a process's command line is shown: full, redacted (secrets hidden), its name, or none."""
    display_servers: list[str] = field(default_factory=lambda: list(DISPLAY_SERVERS))
    """Programs that draw the desktop: with graphics alone on a GPU they do not make it busy."""

    def collector(self) -> CollectorSettings:
        """The part that is about processes."""
        return CollectorSettings(commands=self.commands, display_servers=self.display_servers)
