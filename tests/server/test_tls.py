"""TLS from files, on real sockets: which files are taken, and what happens when they change."""

import contextlib
import http.client
import logging
import shutil
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from fakes.certificates import Authority
from fakes.serving import serving
from fakes.waiting import wait_until
from gpudeck.model.errors import UsageError
from gpudeck.model.settings import LimitsSettings, TlsSettings
from gpudeck.server import tls as tls_module
from gpudeck.server.connections import ConnectionLimiter
from gpudeck.server.tls import Tls


@pytest.fixture(autouse=True)
def look_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tls_module, "CHECK_SECONDS", 0.05)


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def make_pair(authority: Authority, folder: Path, days: int = 90) -> Path:
    """A file with a new key and its certificate."""
    authority.server_context(days=days)
    file = folder / "127.0.0.1.pem"
    file.chmod(0o600)
    return file


@pytest.fixture
def pair(authority: Authority, tmp_path: Path) -> Path:
    return make_pair(authority, tmp_path)


def settings_of(pair: Path, client_ca_file: Path | None = None) -> TlsSettings:
    return TlsSettings(str(pair), str(pair), str(client_ca_file) if client_ca_file else None)


def client_context(ca_file: Path, own: Path | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=ca_file)
    if own is not None:
        context.load_cert_chain(own)
    return context


@contextlib.contextmanager
def connected(port: int, context: ssl.SSLContext) -> Iterator[http.client.HTTPSConnection]:
    connection = http.client.HTTPSConnection("127.0.0.1", port, context=context, timeout=20)
    with contextlib.closing(connection):
        yield connection


def ask(connection: http.client.HTTPConnection) -> bytes:
    connection.request("GET", "/")
    return connection.getresponse().read()


def shown_certificate(port: int) -> bytes:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with socket.create_connection(("127.0.0.1", port), 20) as raw, context.wrap_socket(raw) as secured:
        return secured.getpeercert(binary_form=True) or b""


def certificate_in(file: Path) -> bytes:
    begin = "-----BEGIN CERTIFICATE-----"
    return ssl.PEM_cert_to_DER_cert(begin + file.read_text().partition(begin)[2])


def test_the_hub_speaks_tls_with_the_certificate_of_the_files(authority: Authority, pair: Path) -> None:
    with (
        serving(ConnectionLimiter(), tls=Tls(settings_of(pair))) as port,
        connected(port, client_context(authority.ca_file)) as connection,
    ):
        assert ask(connection) == b"https 0"
        assert certificate_in(pair) == shown_certificate(port)


def test_files_that_change_are_used_at_once_and_open_connections_stay(
    authority: Authority, pair: Path, tmp_path: Path
) -> None:
    with (
        serving(ConnectionLimiter(), tls=Tls(settings_of(pair))) as port,
        connected(port, client_context(authority.ca_file)) as kept,
    ):
        ask(kept)
        first, before = shown_certificate(port), kept.sock
        make_pair(authority, tmp_path)
        wait_until(lambda: shown_certificate(port) == certificate_in(pair), "the new certificate is shown")
        assert shown_certificate(port) != first
        assert ask(kept) == b"https 0"
        assert kept.sock is before


def test_broken_files_change_nothing_and_are_complained_of_once(pair: Path, caplog: pytest.LogCaptureFixture) -> None:
    with serving(ConnectionLimiter(), tls=Tls(settings_of(pair))) as port:
        first = shown_certificate(port)
        pair.write_text("broken")
        wait_until(lambda: "stays in use" in caplog.text, "the complaint")
        assert shown_certificate(port) == first
        pair.unlink()
        wait_until(lambda: caplog.text.count("stays in use") == 2, "the complaint about the missing file")
        assert shown_certificate(port) == first


def test_a_key_of_another_certificate_changes_nothing(
    authority: Authority, pair: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    key = shutil.copy(pair, tmp_path / "key.pem")
    with serving(ConnectionLimiter(), tls=Tls(TlsSettings(str(pair), str(key)))) as port:
        first = shown_certificate(port)
        make_pair(authority, tmp_path)
        wait_until(lambda: "stays in use" in caplog.text, "the complaint")
        assert shown_certificate(port) == first
        shutil.copy(pair, key)
        wait_until(lambda: shown_certificate(port) == certificate_in(pair), "the whole pair is shown")


def test_whoever_brings_no_certificate_is_not_let_in_where_one_is_asked_for(
    authority: Authority, pair: Path, tmp_path: Path
) -> None:
    stranger = tmp_path / "stranger"
    stranger.mkdir()
    others = make_pair(Authority(stranger), stranger)
    limiter = ConnectionLimiter()
    with serving(limiter, tls=Tls(settings_of(pair, authority.ca_file))) as port:
        with connected(port, client_context(authority.ca_file, pair)) as connection:
            assert ask(connection) == b"https 0"
        for own in (None, others):
            with connected(port, client_context(authority.ca_file, own)) as connection, pytest.raises(OSError):  # noqa: PT011
                ask(connection)
        wait_until(lambda: limiter.hits["handshakes"] == 2, "both are counted")


def test_an_authority_that_is_taken_out_is_not_believed_any_more(
    authority: Authority, pair: Path, tmp_path: Path
) -> None:
    clients = tmp_path / "clients"
    clients.mkdir()
    former = Authority(clients, "Former")
    own = make_pair(former, clients)
    ca_file = Path(shutil.copy(former.ca_file, tmp_path / "client-ca.pem"))
    context = client_context(authority.ca_file, own)
    with serving(ConnectionLimiter(), tls=Tls(settings_of(pair, ca_file))) as port:
        with connected(port, context) as connection:
            assert ask(connection) == b"https 0"
        shutil.copy(authority.ca_file, ca_file)

        def is_refused() -> bool:
            with connected(port, context) as connection:
                try:
                    ask(connection)
                except OSError:
                    return True
            return False

        wait_until(is_refused, "the former authority's caller is refused")


def test_old_versions_of_tls_are_refused(authority: Authority, pair: Path) -> None:
    context = client_context(authority.ca_file)
    with pytest.warns(DeprecationWarning, match="TLSv1 is deprecated"):
        context.minimum_version = ssl.TLSVersion.TLSv1
    with pytest.warns(DeprecationWarning, match="TLSv1_1 is deprecated"):
        context.maximum_version = ssl.TLSVersion.TLSv1_1
    with (
        serving(ConnectionLimiter(), tls=Tls(settings_of(pair))) as port,
        connected(port, context) as connection,
        pytest.raises(ssl.SSLError),
    ):
        ask(connection)


def test_plain_http_and_half_handshakes_keep_nobody_out(authority: Authority, pair: Path) -> None:
    limiter = ConnectionLimiter(LimitsSettings(head_time=0.2))
    with serving(limiter, tls=Tls(settings_of(pair))) as port:
        place = ("127.0.0.1", port)
        with socket.create_connection(place, 20) as rude, socket.create_connection(place, 20) as silent:
            rude.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            silent.sendall(b"\x16\x03\x01")
            wait_until(lambda: limiter.hits["handshakes"] == 2, "both are given up")
            assert b"HTTP" not in rude.recv(100)
        with connected(port, client_context(authority.ca_file)) as connection:
            assert ask(connection) == b"https 0"


def test_a_socket_for_this_machine_alone_may_stay_plain(authority: Authority, pair: Path) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as plain,
        serving(ConnectionLimiter(), tls=Tls(settings_of(pair)), plain=[plain]) as port,
        connected(port, client_context(authority.ca_file)) as connection,
    ):
        assert ask(connection) == b"https 0"
        own = http.client.HTTPConnection("127.0.0.1", plain.getsockname()[1], timeout=20)
        with contextlib.closing(own):
            assert ask(own) == b"http 0"


def test_a_missing_file_is_named(pair: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"nowhere\.pem of the section tls cannot be read: no such file"):
        Tls(TlsSettings(str(pair), str(tmp_path / "nowhere.pem")))


def test_files_that_do_not_fit_are_told_apart(authority: Authority, pair: Path, tmp_path: Path) -> None:
    key = shutil.copy(pair, tmp_path / "key.pem")
    make_pair(authority, tmp_path)
    with pytest.raises(UsageError, match=r"key\.pem does not belong to the certificate"):
        Tls(TlsSettings(str(pair), str(key)))
    with pytest.raises(UsageError, match="holds no private key in PEM"):
        Tls(TlsSettings(str(pair), str(authority.ca_file)))
    empty = tmp_path / "empty.pem"
    empty.touch()
    with pytest.raises(UsageError, match=r"empty\.pem holds no certificate in PEM"):
        Tls(TlsSettings(str(empty), str(pair)))
    with pytest.raises(UsageError, match=r"empty\.pem holds no certificates"):
        Tls(settings_of(pair, empty))


def test_a_key_with_a_passphrase_is_refused_and_nobody_is_asked_for_it(pair: Path, tmp_path: Path) -> None:
    locked = tmp_path / "locked.pem"
    locked.write_bytes(
        ec.generate_private_key(ec.SECP256R1()).private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"opensesame"),
        )
    )
    with pytest.raises(UsageError, match=r"locked\.pem has a passphrase"):
        Tls(TlsSettings(str(pair), str(locked)))


@pytest.mark.parametrize(
    ("days", "words"), [(-1, "has expired: clients will refuse it"), (3, "expires in 3 days"), (90, None)]
)
def test_a_certificate_that_ends_is_a_warning_and_no_mistake(
    authority: Authority, tmp_path: Path, caplog: pytest.LogCaptureFixture, days: int, words: str | None
) -> None:
    Tls(settings_of(make_pair(authority, tmp_path, days)))
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert [warning.partition(".pem ")[2] for warning in warnings] == ([words] if words else [])


def test_a_key_that_everybody_may_read_is_a_warning(pair: Path, caplog: pytest.LogCaptureFixture) -> None:
    pair.chmod(0o644)
    Tls(settings_of(pair))
    assert "every user of this machine can read the key" in caplog.text
