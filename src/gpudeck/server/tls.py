"""TLS from files, for the hub and for listening agents: read at the start, and again whenever they change.

Each version of the files becomes a new context, which the next handshake uses. Reloading files into a context in use
does not work: with a key of another kind the old certificate stays, a removed CA is still trusted, and a key that does
not match leaves the context broken. Open connections keep their context.
"""

import asyncio
import contextlib
import logging
import ssl
import stat
import time
from pathlib import Path

from gpudeck.model.errors import UsageError
from gpudeck.model.settings import TlsSettings, expand_home, file_stamp

log = logging.getLogger(__name__)

CHECK_SECONDS = 3.0
SOON_DAYS = 14.0
"""A certificate that expires within this many days causes a warning."""
_DAY = 86_400.0
_EXPIRED, _NOT_YET = 10, 9
"""OpenSSL's X509_V_ERR_CERT_HAS_EXPIRED and X509_V_ERR_CERT_NOT_YET_VALID."""


class Tls:
    """The files of a certificate in use. `context` is a fixed object that uses the newest version."""

    def __init__(self, settings: TlsSettings) -> None:
        """Reads the files. Raises UsageError if they are not a valid certificate."""
        self._files = [expand_home("tls.cert_file", settings.cert_file), expand_home("tls.key_file", settings.key_file)]
        if settings.client_ca_file is not None:
            self._files.append(expand_home("tls.client_ca_file", settings.client_ca_file))
        self._looked_at = time.monotonic()
        self._seen = list(map(file_stamp, self._files))
        self._newest = make_context(*self._files)
        self._complain()
        self.context = make_context(*self._files)
        self.context.sni_callback = self._choose

    def refresh(self) -> None:
        """Check for changed files, every few seconds at most. Broken files change nothing."""
        now = time.monotonic()
        if now - self._looked_at < CHECK_SECONDS:
            return
        self._looked_at = now
        seen = list(map(file_stamp, self._files))
        if seen == self._seen:
            return
        # Recorded first: files that stay broken are logged once.
        self._seen = seen
        try:
            self._newest = make_context(*self._files)
        except UsageError as error:
            log.error("%s The certificate before stays in use.", error)  # noqa: TRY400 - the trace adds nothing
            return
        log.info("the certificate %s was read again", self._files[0])
        self._complain()

    async def keep_fresh(self) -> None:
        """Checks the files until cancelled."""
        while True:
            await asyncio.sleep(CHECK_SECONDS)
            self.refresh()

    def _choose(self, connection: ssl.SSLObject | ssl.SSLSocket, _name: str | None, _context: ssl.SSLContext) -> None:
        """Called in every handshake, with or without a server name."""
        connection.context = self._newest

    def _complain(self) -> None:
        for complaint in (validity_problem(self._files[0], self._files[1]), _secrecy_problem(self._files[1])):
            if complaint is not None:
                log.warning("%s", complaint)


def make_context(cert_file: Path, key_file: Path, client_ca_file: Path | None = None) -> ssl.SSLContext:
    """A server's context from these files. Raises UsageError, naming the file with the mistake."""
    for file in (cert_file, key_file, client_ca_file):
        if file is not None:
            _check_readable(file)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # With TLS 1.2, a caller could make the server repeat the expensive half of a handshake.
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    _load_pair(context, cert_file, key_file)
    if client_ca_file is not None:
        _demand_certificates(context, client_ca_file)
    return context


def _load_pair(context: ssl.SSLContext, cert_file: Path, key_file: Path) -> None:
    try:
        # Without `password` OpenSSL would prompt for a passphrase on the terminal.
        context.load_cert_chain(cert_file, key_file, password=lambda: "")
    except ssl.SSLError as error:
        raise _explain_pair(error, cert_file, key_file) from error
    except OSError as error:
        raise UsageError(f"{cert_file} or {key_file} cannot be read: {error.strerror}.") from error


def _explain_pair(error: ssl.SSLError, cert_file: Path, key_file: Path) -> UsageError:
    if error.reason == "KEY_VALUES_MISMATCH":
        return UsageError(
            f"the key {key_file} does not belong to the certificate {cert_file}.",
            "The server's own certificate has to stand first in its file.",
        )
    if "-----BEGIN CERTIFICATE-----" not in _read(cert_file):
        return UsageError(f"{cert_file} holds no certificate in PEM.", "It begins with -----BEGIN CERTIFICATE-----.")
    if "ENCRYPTED" in _read(key_file):
        return UsageError(f"the key {key_file} has a passphrase.", "Write it without: openssl pkey -in OLD -out NEW.")
    if "PRIVATE KEY-----" not in _read(key_file):
        return UsageError(f"{key_file} holds no private key in PEM.", "It begins with -----BEGIN PRIVATE KEY-----.")
    return UsageError(f"{cert_file} and {key_file} cannot be used: {error.reason or error}.", "Make them again.")


def _demand_certificates(context: ssl.SSLContext, client_ca_file: Path) -> None:
    context.verify_mode = ssl.CERT_REQUIRED
    # A ticket would readmit a caller whose CA was removed meanwhile.
    context.options |= ssl.OP_NO_TICKET
    context.num_tickets = 0
    try:
        context.load_verify_locations(client_ca_file)
    except (ssl.SSLError, OSError) as error:
        raise UsageError(f"{client_ca_file} holds no certificates in PEM.", "See tls.client_ca_file.") from error


def validity_problem(cert_file: Path, key_file: Path) -> str | None:
    """Why the certificate is not valid now, or soon; None if it is. Clients decide, so the server starts anyway. Python
    exposes certificate dates only in a handshake, so one is made in memory."""
    with contextlib.suppress(UsageError, ssl.SSLError, OSError):
        try:
            ends_at = _shake_hands(make_context(cert_file, key_file), cert_file)
        except ssl.SSLCertVerificationError as error:
            word = {_EXPIRED: "has expired", _NOT_YET: "is not valid yet"}.get(error.verify_code)
            return word and f"the certificate {cert_file} {word}: clients will refuse it"
        days = (ends_at - time.time()) / _DAY
        if days < SOON_DAYS:
            return f"the certificate {cert_file} expires in {days:.0f} days"
    return None


def _shake_hands(server_context: ssl.SSLContext, cert_file: Path) -> float:
    """When the certificate expires, in Unix seconds. Raises SSLCertVerificationError if it is not valid now."""
    client_context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client_context.check_hostname = False
    client_context.load_verify_locations(cert_file)
    client_context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = server_context.wrap_bio(to_server, to_client, server_side=True)
    client = client_context.wrap_bio(to_client, to_server)
    for side in (client, server, client):
        with contextlib.suppress(ssl.SSLWantReadError):
            side.do_handshake()
    found = client.getpeercert() or {}
    return ssl.cert_time_to_seconds(str(found["notAfter"]))


def _secrecy_problem(key_file: Path) -> str | None:
    mode = key_file.stat().st_mode
    if mode & (stat.S_IROTH | stat.S_IWOTH):
        return f"every user of this machine can read the key {key_file}: run chmod 640 {key_file}"
    return None


def _check_readable(file: Path) -> None:
    try:
        with file.open("rb") as opened:
            opened.read(1)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise UsageError(f"the file {file} of the section tls cannot be read: {reason}.", "Name another.") from error


def _read(file: Path) -> str:
    return file.read_text(errors="replace")
