"""The way from an agent to its hub, each step broken in turn; the whole way is tried in tests/cli/test_doctor.py."""

import email.utils
import errno
from pathlib import Path

import pytest

from fakes.ports import free_port
from gpudeck.agent.settings import AgentSettings
from gpudeck.ops.doctor.checks import (
    check_agent,
    check_token_file,
    compare_clocks,
    compare_versions,
    find_step,
)
from history.remote.servers import scripted_server

NOW = 1_790_000_000.0


@pytest.fixture
def token(tmp_path: Path) -> str:
    file = tmp_path / "agent.token"
    file.write_text("gd_agent_secret\n")
    file.chmod(0o600)
    return str(file)


def last(settings: AgentSettings, hub: str) -> tuple[str, str]:
    finding = list(check_agent(settings, hub))[-1]
    return finding.name, finding.verdict


@pytest.mark.parametrize(
    ("other", "verdict"),
    [("0.1.0", "ok"), ("0.1.3", "warn"), ("0.2.0", "warn"), ("0.3.0", "fail"), ("1.1.0", "fail"), ("?", "fail")],
)
def test_versions_that_are_neighbours_understand_each_other(other: str, verdict: str) -> None:
    assert compare_versions("0.1.0", other).verdict == verdict


@pytest.mark.parametrize(
    ("skew", "verdict"), [(0, "ok"), (-3, "ok"), (20, "warn"), (-20, "warn"), (120, "fail"), (-120, "fail")]
)
def test_clocks_are_compared(skew: float, verdict: str) -> None:
    assert compare_clocks(NOW + skew + 0.5, email.utils.formatdate(NOW, usegmt=True)).verdict == verdict


def test_a_hub_that_tells_no_time_has_no_wrong_clock() -> None:
    assert compare_clocks(NOW, None).verdict == "skip"


@pytest.mark.parametrize(("mode", "verdict"), [(0o600, "ok"), (0o640, "ok"), (0o644, "warn")])
def test_a_token_that_everybody_may_read_is_told(token: str, mode: int, verdict: str) -> None:
    Path(token).chmod(mode)
    found, finding = check_token_file(token)
    assert (found, finding.verdict) == ("gd_agent_secret", verdict)
    assert "gd_agent_secret" not in finding.told + finding.next_step


def test_a_token_that_this_user_may_not_read_is_no_fault(token: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: Path) -> bytes:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "read_bytes", refuse)
    found, finding = check_token_file(token)
    assert (found, finding.verdict) == (None, "skip")
    assert "as root or as the agent's user" in finding.next_step


def test_a_token_that_is_not_there_fails(tmp_path: Path) -> None:
    assert check_token_file(str(tmp_path / "none"))[1].verdict == "fail"
    assert check_token_file(None)[1].verdict == "fail"


def test_the_first_step_that_fails_is_the_last_that_is_tried(token: str) -> None:
    port = free_port()
    settings = AgentSettings(token_file=token, proxy="none")
    assert last(settings, "ftp://hub") == ("hub", "fail")
    assert last(settings, "http://no-such-host.invalid") == ("http", "fail")
    assert last(settings, f"http://127.0.0.1:{port}") == ("http", "fail")
    through = AgentSettings(token_file=token, proxy=f"http://name:hidden-word@127.0.0.1:{port}")
    findings = list(check_agent(through, "http://hub.example"))
    assert findings[-1].verdict == "fail"
    assert "proxy" in findings[1].told
    assert "hidden-word" not in str(findings)


def test_tls_to_what_speaks_none_fails(token: str) -> None:
    with scripted_server(lambda _: (200, {}, b"")) as server:
        hub = server.url.replace("http:", "https:")
        assert last(AgentSettings(token_file=token, proxy="none"), hub) == ("http", "fail")


def test_another_server_is_no_hub(token: str) -> None:
    # This server answers POST alone: what is asked of it with GET is an error page.
    with scripted_server(lambda _: (200, {}, b"")) as server:
        assert last(AgentSettings(token_file=token, proxy="none"), server.url) == ("http", "fail")


def test_a_proxy_without_its_hub_is_told_from_a_wrong_address() -> None:
    assert "start the hub" in find_step(502)
    assert "Check the address" in find_step(404)
