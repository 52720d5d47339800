"""Asking a server that may do anything: hang, lie, never end, lead elsewhere, show a certificate of its own."""

import asyncio
import contextlib
import datetime
import gzip
import ipaddress
import itertools
import logging
import socket
import ssl
import tracemalloc
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import pytest
import zstandard
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from fakes.waiting import close_listening
from gpudeck.fetch import Fetcher, HttpResponse, trust_from
from gpudeck.model.cpu_budget import LoopBudget
from gpudeck.model.errors import Refused, Temporary, UsageError

Serve = Callable[[bytes, asyncio.StreamWriter], Awaitable[None]]
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


def answer(body: bytes, status: str = "200 OK", *headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


def say(content: bytes) -> Serve:
    async def serve(_: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(content)
        await writer.drain()

    return serve


async def say_nothing(_: bytes, writer: asyncio.StreamWriter) -> None:
    await writer.wait_closed()


async def never_end(_: bytes, writer: asyncio.StreamWriter) -> None:
    """1 GB and more, as fast as it is taken."""
    writer.write(CHUNKED)
    for _ in itertools.count():
        writer.write(b"10000\r\n" + bytes(65536) + b"\r\n")
        await writer.drain()


async def drip(_: bytes, writer: asyncio.StreamWriter) -> None:
    writer.write(CHUNKED)
    for _ in itertools.count():
        writer.write(b"1\r\nx\r\n")
        await writer.drain()
        await asyncio.sleep(0.01)


@contextlib.asynccontextmanager
async def server(serve: Serve, tls: ssl.SSLContext | None = None) -> AsyncIterator[str]:
    """A server on this machine that hands each request to `serve`; its address."""
    handlers: set[asyncio.Task[None]] = set()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        handlers.add(task := asyncio.current_task())  # type: ignore[arg-type]
        with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            while request := await reader.readuntil(b"\r\n\r\n"):
                await serve(request, writer)
        writer.transport.abort()
        handlers.discard(task)  # type: ignore[arg-type]

    listening = await asyncio.start_server(handle, "127.0.0.1", 0, ssl=tls)
    port = listening.sockets[0].getsockname()[1]
    try:
        yield f"http{'s' if tls else ''}://127.0.0.1:{port}"
    finally:
        await close_listening(listening)
        for task in list(handlers):
            task.cancel()
        await asyncio.gather(*handlers, return_exceptions=True)


def ask(
    serve: Serve,
    path: str = "/x",
    *,
    deadline: float = 10.0,
    headers: dict[str, str] | None = None,
    server_tls: ssl.SSLContext | None = None,
    trust: ssl.SSLContext | None = None,
) -> HttpResponse:
    async def asking() -> HttpResponse:
        async with server(serve, server_tls) as url:
            fetcher = Fetcher(deadline=deadline, trust=trust)
            try:
                return await fetcher.get(url + path, headers)
            finally:
                await fetcher.close()

    return asyncio.run(asking())


def test_answer_comes_whole_with_its_headers_in_lower_case() -> None:
    got = ask(say(answer(b"<html>", "200 OK", "X-Consul-Index: 7")))
    assert (got.status, got.body, got.headers["x-consul-index"]) == (200, b"<html>", "7")


def test_server_that_hangs_is_given_up_at_the_deadline() -> None:
    with pytest.raises(Temporary, match=r"^http://127\.0\.0\.1:\d+/x did not answer within 0\.2 s\.$"):
        ask(say_nothing, deadline=0.2)


def test_deadline_is_for_the_whole_answer_not_for_a_piece_of_it() -> None:
    with pytest.raises(Temporary, match=r"did not answer within 0\.3 s"):
        ask(drip, deadline=0.3)


def test_one_question_can_have_a_deadline_of_its_own() -> None:
    async def asking() -> None:
        async with server(say_nothing) as url:
            fetcher = Fetcher(deadline=60.0)
            with pytest.raises(Temporary, match=r"within 0\.1 s"):
                await fetcher.get(url, deadline=0.1)
            await fetcher.close()

    asyncio.run(asking())


def test_endless_answer_is_not_read_to_its_end() -> None:
    with pytest.raises(Temporary, match=r"/x answers more than 8 MiB\.$"):
        ask(never_end)


def test_small_answer_that_unpacks_into_a_large_one_is_not_unpacked() -> None:
    """128 MiB in 128 KiB: the first piece of it that arrives already is most of them."""
    packer = zlib.compressobj(9, wbits=31)
    bomb = b"".join(packer.compress(bytes(2**20)) for _ in range(128)) + packer.flush()
    tracemalloc.start()
    with pytest.raises(Temporary, match="answers more than 8 MiB"):
        ask(say(answer(bomb, "200 OK", "Content-Encoding: gzip")))
    most_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most_bytes < 32 * 2**20


def test_gzip_is_unpacked() -> None:
    assert ask(say(answer(gzip.compress(b"hello"), "200 OK", "Content-Encoding: gzip"))).body == b"hello"


@pytest.mark.parametrize(
    ("body", "encoding", "message"),
    [
        (b"hello", "gzip", "answers what is no gzip"),
        (gzip.compress(b"hello", mtime=0)[:-4], "gzip", "answers gzip that ends early"),
        (zstandard.compress(b"hello"), "zstd", "answers in a content encoding that was not asked for"),
    ],
)
def test_answer_that_cannot_be_unpacked_is_temporary(body: bytes, encoding: str, message: str) -> None:
    with pytest.raises(Temporary, match=message):
        ask(say(answer(body, "200 OK", f"Content-Encoding: {encoding}")))


def test_encoding_that_the_caller_asks_for_is_left_to_the_caller() -> None:
    packed = zstandard.compress(b"hello")
    got = ask(say(answer(packed, "200 OK", "Content-Encoding: zstd")), headers={"Accept-Encoding": "zstd"})
    assert got.body == packed


@pytest.mark.parametrize("status", ["401 Unauthorized", "403 Forbidden"])
def test_refused_token_is_refused_and_not_repeated(status: str) -> None:
    with pytest.raises(
        Refused, match=rf"/x answers {status[:3]}: the token is not accepted\. Check the token"
    ) as caught:
        ask(say(answer(b"no", status)), headers={"Authorization": "Bearer hunter2"})
    assert "hunter2" not in str(caught.value)


def test_redirect_is_not_followed_and_where_it_leads_is_for_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "gpudeck")
    with pytest.raises(Temporary, match=r"/x answers 302: it leads to another address\. Give that address\.$"):
        ask(say(answer(b"", "302 Found", "Location: http://ada:hunter2@other/y?key=hunter2")))
    assert "leads to http://…@other/y" in caplog.text
    assert "hunter2" not in caplog.text


@pytest.mark.parametrize(
    ("headers", "told"),
    [
        (("Content-Type: text/html; charset=utf-8",), "/x answers 502 (text/html)."),
        ((), "/x answers 502."),
        (("Content-Type: the secret is hunter2/x",), "/x answers 502."),
        ((f"Content-Type: text/{'x' * 500}",), "/x answers 502."),
    ],
)
def test_status_and_kind_of_content_are_told_and_nothing_of_the_body(headers: tuple[str, ...], told: str) -> None:
    with pytest.raises(Temporary) as caught:
        ask(say(answer(b"<title>hunter2</title>", "502 Bad Gateway", *headers)))
    assert caught.value.message.endswith(told)


def test_beginning_of_a_body_goes_to_the_log_at_debug_without_control_characters(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG, "gpudeck")
    with pytest.raises(Temporary):
        ask(say(answer(b"\x1b[31mNo\n leader\x07" + b"x" * 500, "500 Internal Server Error")))
    (record,) = caplog.records
    assert record.levelname == "DEBUG"
    assert "/x answers what begins with: [31mNo  leaderxxx" in record.getMessage()
    assert len(record.getMessage()) < 200


def test_what_is_no_http_is_not_repeated() -> None:
    async def greet(_: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(b"+OK secret-banner-of-another-program ready\r\n\r\n")
        writer.close()

    with pytest.raises(Temporary, match=r"/x does not answer: what it says is no HTTP\.$"):
        ask(greet)


def count_turns(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> int:
    """How often the event loop served others while a good answer was read."""
    monkeypatch.setattr("gpudeck.model.cpu_budget.LOOP_SECONDS", 0.0)
    turns = 0
    checkpoint = LoopBudget.checkpoint

    async def count(budget: LoopBudget) -> None:
        nonlocal turns
        turns += 1
        await checkpoint(budget)

    monkeypatch.setattr(LoopBudget, "checkpoint", count)
    ask(serve)
    return turns


def test_others_have_their_turn_after_each_unpacked_mebibyte(monkeypatch: pytest.MonkeyPatch) -> None:
    packed = gzip.compress(bytes(8 * 2**20), mtime=0)
    assert count_turns(say(answer(packed, "200 OK", "Content-Encoding: gzip")), monkeypatch) >= 8


def test_others_have_their_turn_between_tiny_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """They come out of one read, without any waiting in between."""
    assert count_turns(say(CHUNKED + b"1\r\nx\r\n" * 500 + b"0\r\n\r\n"), monkeypatch) >= 500


@pytest.mark.parametrize(
    "content",
    [b"", b"SSH-2.0-OpenSSH_9.2\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf", b"HTTP/1.1 2 \xff\r\n\r\n"],
)
def test_server_that_speaks_no_http_is_temporary(content: bytes) -> None:
    async def hang_up(_: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(content)
        writer.close()
        await writer.wait_closed()

    with pytest.raises(Temporary, match=r"/x does not answer: .+\.$"):
        ask(hang_up)


def fetch(url: str) -> HttpResponse:
    async def asking() -> HttpResponse:
        fetcher = Fetcher(deadline=10.0)
        try:
            return await fetcher.get(url)
        finally:
            await fetcher.close()

    return asyncio.run(asking())


@pytest.fixture
def closed_port() -> Iterator[int]:
    """A port that is ours and on which nobody listens."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]


def test_refused_connection_is_told_in_the_words_of_the_system(closed_port: int) -> None:
    with pytest.raises(Temporary, match=r"/ does not answer: connection refused\.$"):
        fetch(f"http://127.0.0.1:{closed_port}/")


def test_unknown_host_is_temporary() -> None:
    with pytest.raises(Temporary, match="does not answer"):
        fetch("http://no-such-host.invalid/")


def test_secrets_in_an_address_are_never_told(closed_port: int) -> None:
    with pytest.raises(Temporary) as caught:
        fetch(f"http://ada:hunter2@127.0.0.1:{closed_port}/x?key=hunter2")
    assert str(caught.value) == f"http://…@127.0.0.1:{closed_port}/x does not answer: connection refused."


def test_questions_are_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    ask(say(answer(b"x")), "/x?key=hunter2")
    assert caplog.text == ""


@pytest.mark.parametrize("url", ["gpu01:9400", "ftp://gpu01/", "http://[::1", "http://127.0.0.1:70000/", "http://a\n/"])
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(Refused, match=r"is no address of http or https"):
        fetch(url)


def test_connection_is_kept() -> None:
    async def asking() -> int:
        connections: set[object] = set()

        async def serve(_: bytes, writer: asyncio.StreamWriter) -> None:
            connections.add(writer.get_extra_info("peername"))
            writer.write(answer(b"x"))

        async with server(serve) as url:
            fetcher = Fetcher(deadline=10.0)
            for _ in range(3):
                await fetcher.get(url)
            await fetcher.close()
        return len(connections)

    assert asyncio.run(asking()) == 1


def test_cancelled_question_leaves_the_fetcher_usable() -> None:
    async def asking() -> bytes:
        async def serve(request: bytes, writer: asyncio.StreamWriter) -> None:
            await {b"/slow": say_nothing, b"/fast": say(answer(b"x"))}[request.split()[1]](request, writer)

        async with server(serve) as url:
            fetcher = Fetcher(deadline=10.0)
            for _ in range(3):
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(fetcher.get(f"{url}/slow"), 0.05)
            got = await fetcher.get(f"{url}/fast")
            await fetcher.close()
        return got.body

    assert asyncio.run(asking()) == b"x"


def make_certificate(folder: Path) -> tuple[Path, ssl.SSLContext]:
    """A certificate of our own for this machine: the file to believe, and what a server shows."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "ours")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    believed, shown = folder / "ca.pem", folder / "server.pem"
    pem = certificate.public_bytes(serialization.Encoding.PEM)
    secret = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    believed.write_bytes(pem)
    shown.write_bytes(pem + secret)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(shown)
    return believed, context


def test_certificate_of_an_unknown_authority_is_not_believed(tmp_path: Path) -> None:
    _, shown = make_certificate(tmp_path)
    with pytest.raises(Temporary, match="does not answer: its certificate is not believed: self-signed certificate"):
        ask(say(answer(b"x")), server_tls=shown)


def test_certificate_of_our_own_authority_is_believed(tmp_path: Path) -> None:
    believed, shown = make_certificate(tmp_path)
    assert ask(say(answer(b"x")), server_tls=shown, trust=trust_from(str(believed))).body == b"x"


def test_server_without_tls_is_told_as_such() -> None:
    async def greet(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"SSH-2.0-OpenSSH_9.2\r\n")
        writer.close()

    async def asking() -> None:
        async with await asyncio.start_server(greet, "127.0.0.1", 0) as listening:
            fetcher = Fetcher(deadline=10.0)
            with pytest.raises(Temporary, match=r"does not answer: TLS fails: wrong version number\.$"):
                await fetcher.get(f"https://127.0.0.1:{listening.sockets[0].getsockname()[1]}/")
            await fetcher.close()

    asyncio.run(asking())


def test_file_without_certificates_is_a_mistake(tmp_path: Path) -> None:
    (tmp_path / "empty.pem").write_text("")
    for name in ("empty.pem", "gone.pem"):
        with pytest.raises(UsageError, match=f"the certificates in .*{name} cannot be read: "):
            trust_from(str(tmp_path / name))
