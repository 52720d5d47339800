"""One LDAP directory: whether a name and a password fit, who a user is, and who is still there.

ldap3 blocks, so everything runs in threads of its own, and everything has an end: a deadline for each question, after
which its socket is closed. Names reach a filter or a DN only escaped. A password goes to the server only over TLS (or
to this machine), and after the server's certificate was checked.
"""

import asyncio
import contextlib
import logging
import math
import re
import secrets
import socket
import ssl
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

import ldap3
from ldap3.core.exceptions import LDAPException, LDAPInvalidFilterError, LDAPSASLPrepError, LDAPSocketOpenError
from ldap3.utils.conv import escape_filter_chars
from ldap3.utils.dn import escape_rdn
from msgspec import Struct

from gpudeck.auth.claims import MAX_GROUPS
from gpudeck.auth.login import DirectoryUnavailable
from gpudeck.auth.settings import LdapSettings, read_secret
from gpudeck.fetch import explain, shared_trust, trust_from
from gpudeck.model import clock
from gpudeck.model.errors import GpudeckError, Wrong
from gpudeck.model.text import clean

log = logging.getLogger(__name__)

MAX_DEPTH: Final = 10
"""Of groups in groups."""
RETRY_SECONDS: Final = 5.0
"""While no server answers it is asked again this often, and everything else is refused at once."""
_THREADS: Final = 8
_GROUPS_AT_ONCE: Final = 50
_IN_CHAIN: Final = "1.2.840.113556.1.4.1941"
"""Active Directory's matching rule for members of members."""
_DISABLED = "userAccountControl", "accountExpires", "nsAccountLock", "pwdAccountLockedTime", "shadowExpire"
_SUCCESS, _SIZE_LIMIT = 0, 4
_TROUBLE = frozenset({1, 2, 7, 8, 13, 51, 52, 80})
"""Answers to a bind that are about the server or the connection. All others are about the user: a wrong password, a
locked account, no such entry."""
_NEXT_STEPS: Final = {
    "noSuchObject": "correct `base` or `group_base`, or let `bind_dn` read it",
    "invalidDNSyntax": "`base`, `group_base`, `bind_dn` and `user_dn` have to be DNs",
    "insufficientAccessRights": "let `bind_dn` read users and groups",
    "operationsError": "set `bind_dn`",
    "inappropriateAuthentication": "set `bind_dn`",
    "confidentialityRequired": "use ldaps:// or `start_tls`",
    "strongerAuthRequired": "use ldaps:// or `start_tls`",
}
_HINT = "Accounts of the hub itself can log in meanwhile."
_T = TypeVar("_T")


class DirectoryUser(Struct, frozen=True):
    """An entry of the directory. `subject` is its id that never changes; `claims` are its attributes under their own
    names and, where there is one, under the names that OIDC has for it: preferred_username, email, groups. `problem` is
    why the groups cannot be read; half of them would take a role away."""

    subject: str
    dn: str
    claims: dict[str, object]
    problem: str = ""


class _Broken(Exception):
    """The server does not answer, or does not let the hub in; says why. The next one may."""


class LdapDirectory:
    """`close` ends its threads. Everything raises DirectoryUnavailable where no server answers, and Wrong where the
    configuration does not fit the directory. `problem` is why it cannot be used now; None: it can. The log says when
    that begins and when it ends."""

    def __init__(self, settings: LdapSettings, now: clock.Clock = clock.wall) -> None:
        """Raises UsageError for a file that cannot be read."""
        self.settings = settings
        self._problem: GpudeckError | None = None
        self._now = now
        file = settings.bind_password_file
        self._password = read_secret("login.ldap.bind_password_file", file) if file else None
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="ldap")
        ca_file = settings.ca_file
        self._context = shared_trust() if ca_file is None else trust_from(ca_file, "login.ldap.ca_file")
        self._down_until = 0.0

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    @property
    def problem(self) -> str | None:
        return None if self._problem is None else self._problem.message

    @property
    def can_look_up(self) -> bool:
        """Whether the directory can be asked about users without their passwords."""
        return self.settings.user_dn is None or self.settings.bind_dn is not None

    async def authenticate(self, name: str, password: str) -> DirectoryUser | None:
        """The user with that name and password. None for a wrong one, an unknown name, and a disabled user: the server
        has the same to do for each."""
        if not password:
            # Servers take a bind without a password for an anonymous one, and let it in.
            return None
        return await self._ask(lambda link: self._authenticate(link, name, password))

    async def find(self, name: str) -> DirectoryUser | None:
        """A user, without a password: for `gpudeck check`."""
        return await self._ask(lambda link: self._find_one(link, name))

    async def look_up(self, subjects: Sequence[str]) -> dict[str, DirectoryUser | None]:
        """Who is still there, by their ids; None for those who are not, or are disabled, or no longer fit the
        filter."""
        return await self._ask(lambda link: {one: self._look_up(link, one) for one in subjects}, len(subjects))

    async def _ask(self, work: "Callable[[_Link], _T]", amount: int = 1) -> _T:
        if self._problem is not None and time.monotonic() < self._down_until:
            raise DirectoryUnavailable(self._problem.message, _HINT)
        seconds = self.settings.timeout * (3 + amount // 10)
        links: list[_Link] = []

        def asking() -> _T:
            return self._ask_one_of(work, time.monotonic() + seconds, links)

        try:
            answer = await asyncio.wait_for(
                asyncio.get_running_loop().run_in_executor(self._threads, asking), seconds + self.settings.timeout
            )
        except (TimeoutError, _Broken) as error:
            for link in links:
                link.abort()
            why = str(error) or f"no answer within {seconds:g} s"
            self._down_until = time.monotonic() + RETRY_SECONDS
            away = DirectoryUnavailable(f"the directory {self.settings.label} cannot be asked: {why}.", _HINT)
            self._note(away)
            raise away from error
        except Wrong as error:
            self._note(error)
            raise
        # The password of a user who binds directly says nothing about that of `bind_dn`.
        if not isinstance(self._problem, Wrong) or self.settings.bind_dn is None or links[-1].is_service:
            self._note(None)
        return answer

    def _note(self, problem: GpudeckError | None) -> None:
        if problem is not None and type(problem) is not type(self._problem):
            log.warning("%s %s", problem, "Users who are logged in stay in.")
        elif problem is None and self._problem is not None:
            log.info("the directory %s can be asked again", self.settings.label)
        self._problem = problem

    def _ask_one_of(self, work: "Callable[[_Link], _T]", deadline: float, links: "list[_Link]") -> _T:
        """The first server that answers is asked."""
        problems = []
        for url in self.settings.urls:
            with contextlib.closing(_Link(self.settings, self._context, url, deadline)) as link:
                links.append(link)
                try:
                    link.open()
                    return work(link)
                except (_Broken, LDAPException, OSError) as error:
                    problems.append(f"{urlsplit(url).hostname}: {_explain(error, link.tls)}")
        raise _Broken("; ".join(problems))

    def _authenticate(self, link: "_Link", name: str, password: str) -> DirectoryUser | None:
        settings = self.settings
        if settings.user_dn is not None:
            own = settings.user_dn.replace("{name}", escape_rdn(name))
            if not link.bind(own, password):
                return None
            entry = self._search_user(link, name)
        else:
            self._bind_service(link)
            entry = self._search_user(link, name)
            # An unknown name costs the server a bind as well.
            dn = f"cn={secrets.token_hex(16)},{settings.base}" if entry is None else entry[0]
            if not link.bind(dn, password) or entry is None:
                return None
            self._bind_service(link)
        return None if entry is None else self._read(link, *entry)

    def _find_one(self, link: "_Link", name: str) -> DirectoryUser | None:
        self._bind_service(link)
        entry = self._search_user(link, name)
        return None if entry is None else self._read(link, *entry)

    def _look_up(self, link: "_Link", subject: str) -> DirectoryUser | None:
        self._bind_service(link)
        attribute = self.settings.id_attribute
        value = _filter_of_guid(subject) if _is_binary(attribute) else escape_filter_chars(subject)
        found = link.search(self.settings.base, f"({attribute}={value})", self._attributes())
        if len(found) != 1:
            return None
        dn, attributes = found[0]
        name = _first(attributes, self.settings.name_attribute)
        # The filter decides who may log in, such as the members of one group.
        fitting = self._search_user(link, name) if name else None
        return self._read(link, dn, attributes) if fitting is not None and fitting[0] == dn else None

    def _bind_service(self, link: "_Link") -> None:
        """As the hub's own user, or as nobody. Once for each connection, unless another user was bound since."""
        if link.is_service:
            return
        dn = self.settings.bind_dn
        if dn is not None and not link.bind(dn, self._password or ""):
            raise Wrong(
                f"the directory {self.settings.label} does not accept `bind_dn` and its password.",
                "Correct bind_dn and bind_password_file in login.ldap.",
            )
        if dn is None:
            link.bind_anonymously()
        link.is_service = True

    def _search_user(self, link: "_Link", name: str) -> "tuple[str, _Attributes] | None":
        """The one entry with that name. None for none, and for several."""
        wanted = self.settings.user_filter.replace("{name}", escape_filter_chars(name))
        found = link.search(self.settings.base, wanted, self._attributes(), most=2)
        if len(found) > 1:
            log.warning("the user_filter of login.ldap finds several entries for %s: nobody is logged in", clean(name))
        return found[0] if len(found) == 1 else None

    def _attributes(self) -> list[str]:
        mapping = self.settings.mapping
        named = [self.settings.name_attribute, self.settings.id_attribute, mapping.name_claim, mapping.groups_claim]
        # Names of claims that are no attributes would be refused by some servers.
        kept = [name for name in named if re.fullmatch(r"[A-Za-z][A-Za-z0-9;-]*", name)]
        return list(dict.fromkeys([*kept, "mail", "cn", "displayName", *_DISABLED]))

    def _read(self, link: "_Link", dn: str, attributes: "_Attributes") -> DirectoryUser | None:
        """None for a user who is disabled."""
        if why := find_lock(attributes, self._now()):
            log.warning("%s of the directory %s may not log in: %s", clean(dn[:200]), self.settings.label, why)
            return None
        subject = self._read_subject(attributes)
        if not subject:
            raise Wrong(
                f"the directory {self.settings.label} shows no {self.settings.id_attribute}, which identifies users.",
                "Set id_attribute in login.ldap, or let bind_dn read it.",
            )
        claims: dict[str, object] = {
            name: _texts(values)[0] if len(values) == 1 else _texts(values)
            for name, values in attributes.items()
            if values and name not in _DISABLED and not _is_binary(name)
        }
        name = _first(attributes, self.settings.name_attribute)
        claims |= {"preferred_username": name} if name else {}
        claims |= {"email": mail} if (mail := _first(attributes, "mail")) else {}
        try:
            return DirectoryUser(subject, dn, claims | {"groups": self._find_groups(link, dn, name)})
        except _Unreadable as error:
            problem = f"the groups of {clean(dn[:200])} cannot be read: {error}."
            log.warning("%s", problem)
            return DirectoryUser(subject, dn, claims, problem)

    def _read_subject(self, attributes: "_Attributes") -> str:
        values = attributes.get(self.settings.id_attribute) or []
        if not values:
            return ""
        return values[0].hex() if _is_binary(self.settings.id_attribute) else _texts(values[:1])[0]

    def _find_groups(self, link: "_Link", dn: str, name: str) -> list[str]:
        """The groups that a user is in, also through other groups. Raises _Unreadable where not all can be read."""
        settings, found = self.settings, dict[str, str]()
        base = settings.group_base or settings.base
        if settings.nested == "active_directory":
            wanted = f"(member:{_IN_CHAIN}:={escape_filter_chars(dn)})"
            return _names(link.search(base, wanted, [settings.group_attribute]), settings.group_attribute)
        members = [_is_member(dn), f"(memberUid={escape_filter_chars(name)})"]
        for depth in range(MAX_DEPTH if settings.nested == "walk" else 1):
            fresh: dict[str, str] = {}
            for start in range(0, len(members), _GROUPS_AT_ONCE):
                part = members[start : start + _GROUPS_AT_ONCE]
                entries = link.search(base, f"(|{''.join(part)})", [settings.group_attribute])
                fresh |= {one: _first(values, settings.group_attribute) or one for one, values in entries}
            members = [_is_member(one) for one in fresh if one not in found]
            found |= fresh
            if not members or len(found) > MAX_GROUPS:
                break
            if depth == MAX_DEPTH - 1:
                log.warning("groups of %s are nested deeper than %s: the rest is left out", clean(dn), MAX_DEPTH)
        return list(dict.fromkeys(found.values()))


_Attributes = Mapping[str, list[bytes]]


class _Unreadable(_Broken):
    """A search that the server does not answer in full; says why."""


class _Link:
    """A connection to one server, used by one thread. Raises _Broken, OSError and LDAPException where it breaks."""

    def __init__(self, settings: LdapSettings, context: ssl.SSLContext, url: str, deadline: float) -> None:
        parts = urlsplit(url)
        self.is_service = False
        self._settings = settings
        self._deadline = deadline
        self._starts_tls = parts.scheme == "ldap" and settings.start_tls
        seconds = settings.timeout
        self.tls = _Tls(context, parts.hostname or "")
        server = ldap3.Server(
            parts.hostname,
            port=parts.port or (636 if parts.scheme == "ldaps" else 389),
            use_ssl=parts.scheme == "ldaps",
            tls=self.tls,
            get_info=ldap3.NONE,
            connect_timeout=seconds,
        )
        self._connection = ldap3.Connection(
            server,
            auto_referrals=False,
            check_names=False,
            read_only=True,
            receive_timeout=math.ceil(seconds),
            raise_exceptions=False,
        )

    def open(self) -> None:
        self._connection.open(read_server_info=False)
        if self._starts_tls and not self._connection.start_tls(read_server_info=False):
            raise _Broken(f"it does not offer StartTLS ({self._words()})")

    def close(self) -> None:
        opened = self._connection.socket
        with contextlib.suppress(LDAPException, OSError):
            self._connection.unbind()
        # After a broken handshake ldap3 leaves it open.
        if opened is not None:
            opened.close()

    def abort(self) -> None:
        """From another thread: whatever it waits for ends."""
        with contextlib.suppress(OSError, AttributeError):
            self._connection.socket.shutdown(socket.SHUT_RDWR)

    def bind(self, dn: str, password: str) -> bool:
        """Whether the server takes this password for that DN. Never without a password."""
        self._check_time()
        self.is_service = False
        if not password:
            return False
        self._connection.user, self._connection.password = dn, password
        self._connection.authentication = ldap3.SIMPLE
        try:
            is_bound = bool(self._connection.bind(read_server_info=False))
        except LDAPSASLPrepError:
            # Characters that no password of a directory has. Nothing was sent, and nothing is wrong with the server.
            return False
        finally:
            self._connection.password = None
        if not is_bound and self._code() in _TROUBLE:
            raise _Broken(f"it does not take a login ({self._words()})")
        return is_bound

    def bind_anonymously(self) -> None:
        self._check_time()
        self._connection.user = self._connection.password = None
        self._connection.authentication = ldap3.ANONYMOUS
        if not self._connection.bind(read_server_info=False):
            raise _Broken(f"it takes nobody without bind_dn ({self._words()})")

    def search(
        self, base: str, wanted: str, attributes: Iterable[str], most: int = MAX_GROUPS
    ) -> list[tuple[str, _Attributes]]:
        """DN and attributes of each entry. Raises _Unreadable where some are missing."""
        self._check_time()
        self._connection.search(
            base,
            wanted,
            attributes=list(attributes),
            size_limit=most,
            time_limit=max(1, int(self._settings.timeout)),
        )
        code = self._code()
        entries = [one for one in self._connection.response or () if one["type"] == "searchResEntry"]
        if code != _SUCCESS and not (code == _SIZE_LIMIT and len(entries) == most == 2):
            raise _Unreadable(self._words())
        return [(one["dn"], one["raw_attributes"]) for one in entries]

    def _code(self) -> int:
        return int(self._connection.result["result"])

    def _words(self) -> str:
        """Never the DN or the password: only what kind of answer it is."""
        kind = clean(str(self._connection.result.get("description", "no reason"))[:80])
        return f"{kind} ({hint})" if (hint := _NEXT_STEPS.get(kind)) else kind

    def _check_time(self) -> None:
        if time.monotonic() > self._deadline:
            raise _Broken("it takes too long")


class _Tls(ldap3.Tls):  # type: ignore[misc]
    """With Python's own check of the server's name: that of ldap3 uses a function which newer Pythons do not have."""

    def __init__(self, context: ssl.SSLContext, host: str) -> None:
        super().__init__(validate=ssl.CERT_REQUIRED)
        self._context = context
        self._host = host
        self.failure: OSError | None = None

    def wrap_socket(self, connection: Any, do_handshake: bool = False) -> None:
        try:
            connection.socket = self._context.wrap_socket(
                connection.socket, server_hostname=self._host, do_handshake_on_connect=do_handshake
            )
        except OSError as error:
            self.failure = error  # ldap3 makes text of it
            raise


def find_lock(attributes: _Attributes, now: float) -> str:
    """Why the directory lets nobody in with this entry; empty where it does. Servers that know these attributes do not
    all look at them when a user binds."""
    control = _number(attributes, "userAccountControl")
    if control is not None and control & 2:
        return "the account is disabled (userAccountControl)"
    expires = _number(attributes, "accountExpires")
    # In tenths of microseconds since 1601; both ends of the range mean never.
    if expires is not None and 0 < expires < 2**63 - 1 and expires / 1e7 - 11_644_473_600 <= now:
        return "the account has expired (accountExpires)"
    if _first(attributes, "nsAccountLock").lower() == "true":
        return "the account is locked (nsAccountLock)"
    if _first(attributes, "pwdAccountLockedTime").startswith("000001010000"):
        return "the account is locked (pwdAccountLockedTime)"
    day = _number(attributes, "shadowExpire")
    if day is not None and 0 <= day * 86_400 <= now:
        return "the account has expired (shadowExpire)"
    return ""


def _is_member(dn: str) -> str:
    value = escape_filter_chars(dn)
    return f"(member={value})(uniqueMember={value})"


def _names(entries: Sequence[tuple[str, _Attributes]], attribute: str) -> list[str]:
    return list(dict.fromkeys(_first(values, attribute) or dn for dn, values in entries))


def _texts(values: Iterable[bytes]) -> list[str]:
    return [value.decode("utf-8", "replace") for value in values]


def _first(attributes: _Attributes, name: str) -> str:
    """Names of attributes have no case."""
    wanted = name.lower()
    found = next((values for known, values in attributes.items() if known.lower() == wanted and values), None)
    return "" if found is None else _texts(found[:1])[0]


def _number(attributes: _Attributes, name: str) -> int | None:
    text = _first(attributes, name)
    return int(text) if re.fullmatch(r"-?[0-9]{1,20}", text) else None


def _is_binary(attribute: str) -> bool:
    return attribute.lower() in {"objectguid", "objectsid"}


def _filter_of_guid(subject: str) -> str:
    """\\xx for each byte of the hexadecimal text."""
    return "".join(f"\\{subject[at : at + 2]}" for at in range(0, len(subject), 2))


def _explain(error: Exception, tls: _Tls) -> str:
    """In one line, with the setting to correct, and without what was sent."""
    if isinstance(error, LDAPInvalidFilterError):
        return "`user_filter` is no LDAP filter"
    if tls.failure is not None:
        is_unknown = isinstance(tls.failure, ssl.SSLCertVerificationError)
        return explain(tls.failure) + (" (`ca_file`, or the name in `urls`)" if is_unknown else "")
    if isinstance(error, LDAPSocketOpenError):
        # ldap3 keeps the system's reason in its text only.
        found = re.search(r"\[Errno -?\d+\] ([\w ]+)", str(error))
        return f"no connection ({found[1].lower() if found else 'refused, or it takes too long'})"
    return clean(explain(error))[:200].rstrip(".")
