"""What is in the archive, and what never is: secrets planted everywhere are looked for in every byte of it."""

import json
import string
import tarfile
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from fakes.reports import make_busy_gpu, make_envelope
from gpudeck.agent.settings import AgentSettings
from gpudeck.fleet.hub import Hub
from gpudeck.model.view import Fleet
from gpudeck.ops.doctor import Finding
from gpudeck.ops.doctor.bundle import find_secrets, show_settings, write_bundle
from gpudeck.settings import Settings

LETTERS = string.ascii_letters + string.digits
SECRET = st.text(LETTERS + "-_.!~", min_size=8, max_size=40).filter(lambda text: len(set(text)) > 5)
FINDING = Finding("hub", "running", "ok", "it runs")


def plant(secret: str, folder: Path) -> Settings:
    """One secret at every place in which a setting can hold one."""
    file = folder / "a.secret"
    file.write_text(secret + "\n")
    address = folder / "channel.url"
    address.write_text(f"mailtos://name:{secret}@mail.example\n")
    plain = {
        "database": f"postgresql://hub:{secret}@db.example/gpudeck",
        "agent": {
            "hub": f"https://me:{secret}@hub.example/gpus",
            "proxy": f"http://me:{secret}@proxy:3128",
            "token_file": str(file),
        },
        "notify": {
            "channels": {
                "slack": {"url": f"slack://{secret}/{secret}/{secret}"},
                "hook": {"url": f"https://hooks.slack.com/services/T0/B0/{secret}"},
                "query": {"url": f"json://host/path?token={secret}"},
                "file": {"url_file": str(address)},
            }
        },
        "history": {
            "kind": "prometheus",
            "write_url": f"https://store.example/{secret}/api/v1/write",
            "read_url": f"https://store.example/{secret}/prometheus",
            "headers": {"X-Key": secret},
        },
        "chat": {"slack": {"app_token": f"xapp-{secret}", "bot_token": f"xoxb-{secret}"}},
        "compat": {"vesta": {"token": secret}, "gpu_cluster_status": {"password": secret}},
        "discovery": {"http_sd": [{"url": f"https://me:{secret}@sd.example/{secret}?key={secret}"}]},
    }
    return msgspec.convert(plain, Settings, strict=False)


@cache
def shown_with(secret: str) -> str:
    with tempfile.TemporaryDirectory() as folder:
        return json.dumps(show_settings(plant(secret, Path(folder))))


def log_with(secret: str) -> str:
    return "\n".join(
        [
            f"2026-11-15 hub: https://me:{secret}@hub.example does not answer",
            f"agent: Authorization: Bearer {secret}",
            f"postgresql://hub:{secret}@db.example is away",
            f"the word itself: {secret}",
            f"quoted '{secret}', \"{secret}\", ({secret})",
        ]
    )


def make_fleet(secret: str = "") -> Fleet:
    hub = Hub()
    envelope = make_envelope("node-of-lab7", gpus=[make_busy_gpu(0)])
    hub.fleet.apply(envelope, via="push", now=envelope.collected_at)
    fleet = hub.fleet.view(envelope.collected_at)
    fleet.hosts[0].problems = [f"node-of-lab7: alice's token {secret} was refused"]
    return fleet


def pack(where: Path, written: Settings, secret: str, **others: Any) -> dict[str, str]:
    file = where / "bundle.tar.gz"
    findings = [FINDING, Finding("hub", "source", "fail", f"node-of-lab7 says {secret} to alice", "")]
    write_bundle(file, written, findings, make_fleet(secret), find_secrets(written, []), log=log_with(secret), **others)
    with tarfile.open(file) as archive:
        return {member.name: archive.extractfile(member).read().decode() for member in archive}  # type: ignore[union-attr]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(secret=SECRET)
def test_no_planted_secret_gets_into_the_archive(secret: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        members = pack(Path(folder), plant(secret, Path(folder)), secret)
    assert [name for name, text in members.items() if secret in text] == []


@settings(max_examples=60, deadline=None)
@given(secret=SECRET)
def test_settings_alone_show_no_secret(secret: str) -> None:
    """The first layer by itself: the last one, which knows the secrets, is not needed for settings. What is part of a
    setting's name or of a default stands there anyway."""
    assume(secret not in shown_with("Another-1.planted"))
    assert secret not in shown_with(secret)


def test_no_name_stands_in_it(tmp_path: Path) -> None:
    without = "".join(pack(tmp_path, Settings(), "hidden-word").values())
    assert not [name for name in ("node-of-lab7", "alice", "train.py") if name in without]
    assert "host-1" in without


def test_what_helps_is_in_it(tmp_path: Path) -> None:
    written = Settings(agent=AgentSettings(hub="https://hub.example/gpus", interval=7.0))
    members = pack(tmp_path, written, "hidden-word")
    assert set(members) == {
        f"gpudeck-doctor/{name}" for name in ("versions.json", "doctor.json", "settings.json", "fleet.json", "log.txt")
    }
    shown = json.loads(members["gpudeck-doctor/settings.json"])
    assert (shown["agent"]["interval"], shown["agent"]["hub"]) == (7.0, "https://***")
    assert json.loads(members["gpudeck-doctor/doctor.json"])[0]["told"] == "it runs"
    assert json.loads(members["gpudeck-doctor/fleet.json"])["totals"]["gpus"] == 1
    assert "is away" in members["gpudeck-doctor/log.txt"]


def test_the_archive_is_its_owners_alone(tmp_path: Path) -> None:
    pack(tmp_path, Settings(), "hidden-word")
    assert (tmp_path / "bundle.tar.gz").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("name", ["none/bundle.tar.gz", "."])
def test_an_archive_that_cannot_be_written_is_an_error_with_its_name(tmp_path: Path, name: str) -> None:
    with pytest.raises(Exception, match="cannot be written"):
        write_bundle(tmp_path / name, None, [FINDING], None, [], log="")
