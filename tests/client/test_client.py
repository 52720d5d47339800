"""What the command line is told when a hub does not answer as it should."""

import contextlib
import socket
import ssl
import threading
from pathlib import Path

import pytest

from fakes.certificates import Authority
from gpudeck.client import Client
from gpudeck.model.errors import Unreachable


def test_certificate_that_is_not_believed_is_named_as_such(tmp_path: Path) -> None:
    context = Authority(tmp_path).server_context("localhost")
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(10)
        port = listening.getsockname()[1]

        def serve() -> None:
            connection, _ = listening.accept()
            with connection, contextlib.suppress(ssl.SSLError, OSError):
                context.wrap_socket(connection, server_side=True)

        thread = threading.Thread(target=serve)
        thread.start()
        with pytest.raises(Unreachable, match=r"certificate of .* is not believed"):
            Client(f"https://localhost:{port}").fleet()
        thread.join(10)
