"""The words for failures that a machine under test cannot be brought to."""

import errno

import asyncssh
import pytest

from gpudeck.model.errors import PluginError, Refused, Temporary, Wrong
from gpudeck.sources.ssh_errors import Attempt, explain

ATTEMPT = Attempt("gpu01", "gpu01.example.org", 2222, "ada")


@pytest.mark.parametrize(
    ("error", "kind", "told"),
    [
        (
            OSError(errno.EHOSTUNREACH, "No route to host"),
            Temporary,
            "There is no route to gpu01 (gpu01.example.org:2222): it is down, or the network is.",
        ),
        (
            OSError(errno.ETIMEDOUT, "Connection timed out"),
            Temporary,
            "gpu01 (gpu01.example.org:2222) does not answer: it is down, or a firewall is in between.",
        ),
        (
            asyncssh.DisconnectError(2, "Too many authentication failures"),
            Refused,
            "gpu01 (gpu01.example.org:2222) gave up before the right key was tried: too many keys were offered. "
            "Name the one that fits: ssh.key_files, or IdentityFile and IdentitiesOnly in ~/.ssh/config.",
        ),
        (
            asyncssh.ChannelOpenError(2, "open failed"),
            Temporary,
            "gpu01 (gpu01.example.org:2222) opens no session: the connection failed. "
            "Look at MaxSessions in its sshd_config.",
        ),
        (
            asyncssh.KeyExchangeFailed("No matching key exchange algorithm found"),
            Temporary,
            "gpu01 (gpu01.example.org:2222) and the hub have no way of encryption in common: "
            "No matching key exchange algorithm found.",
        ),
        (
            asyncssh.ConnectionLost("Connection lost"),
            Temporary,
            "gpu01 (gpu01.example.org:2222) closed the connection.",
        ),
        (
            asyncssh.DisconnectError(11, "Goodbye\x1b[31m\nnow"),
            Temporary,
            "gpu01 (gpu01.example.org:2222) closed the connection (DisconnectError).",
        ),
        (
            KeyError("odd"),
            Wrong,
            "Reading gpu01 (gpu01.example.org:2222) failed in an unforeseen way: KeyError: 'odd'.",
        ),
    ],
)
def test_each_failure_has_its_kind_and_its_words(error: Exception, kind: type[PluginError], told: str) -> None:
    explained = explain(error, ATTEMPT)
    assert (type(explained), str(explained)) == (kind, told)


@pytest.mark.parametrize(
    ("name", "host", "port", "place"),
    [
        ("gpu01", "gpu01", 22, "gpu01"),
        ("gpu01", "gpu01", 2222, "gpu01:2222"),
        ("gpu01", "10.0.0.1", 22, "gpu01 (10.0.0.1)"),
        ("gpu01", "fd00::1", 2222, "gpu01 ([fd00::1]:2222)"),
    ],
)
def test_place_is_named_once(name: str, host: str, port: int, place: str) -> None:
    assert Attempt(name, host, port, "ada").place == place
