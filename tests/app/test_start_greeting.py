"""What a hub says when it has started: addresses that work, for this machine and for others."""

import socket
from pathlib import Path

import pytest

from fakes.hubs import gpudeck, running_hub


def write(folder: Path, listen: str) -> None:
    (folder / "gpudeck.yaml").write_text(f"listen: '{listen}'\nread: open\ndemo: never\nlocal: never\n")


def read_admin_token(folder: Path) -> str:
    return (folder / "admin.token").read_text().strip()


@pytest.mark.parametrize("listen", [":0", "0.0.0.0:0", "[::]:0"])
def test_a_hub_that_listens_everywhere_answers_where_it_says_and_tells_others_its_name(
    tmp_path: Path, listen: str
) -> None:
    write(tmp_path, listen)
    with running_hub(tmp_path, "--config", "gpudeck.yaml", "--listen", listen) as hub:
        assert hub.get("/api/v1/fleet")
        port = hub.url.rpartition(":")[2]
        assert f"elsewhere    http://{socket.gethostname()}:{port}/\n" in hub.greeting
        assert f"hosts add NAME --hub {hub.url}\n" in hub.greeting
        added = gpudeck(tmp_path, "hosts", "add", "gpu07", "--hub", hub.url, GPUDECK_TOKEN=read_admin_token(tmp_path))
        assert f"servers must reach the hub at http://{socket.gethostname()}:{port}; if they know" in added.stderr


def test_a_hub_on_loopback_names_the_file_that_opens_it(tmp_path: Path) -> None:
    with running_hub(tmp_path) as without_file:
        assert "./gpudeck.yaml (a new file)" in without_file.greeting
    write(tmp_path, "127.0.0.1:0")
    with running_hub(tmp_path) as with_file:
        assert f"`read: open`\n               (or login) are set in {tmp_path}/gpudeck.yaml\n" in with_file.greeting
        assert "hosts add NAME --via ssh" in with_file.greeting


@pytest.mark.parametrize("listen", ["127.0.0.1:0", "0.0.0.0:0"])
def test_address_of_the_page_that_is_set_is_the_one_for_other_machines(tmp_path: Path, listen: str) -> None:
    write(tmp_path, listen)
    with (tmp_path / "gpudeck.yaml").open("a") as file:
        file.write("notify: {page: https://gpus.example/gpus/}\n")
    with running_hub(tmp_path, "--listen", listen) as hub:
        assert "elsewhere    https://gpus.example/gpus/\n" in hub.greeting
        added = gpudeck(tmp_path, "hosts", "add", "gpu07", "--hub", hub.url, GPUDECK_TOKEN=read_admin_token(tmp_path))
        assert "curl -fsS https://gpus.example/gpus/install.sh" in added.stdout, added.stderr
        assert "notify.page" not in added.stderr


def test_a_demo_that_was_asked_for_invites_nobody(tmp_path: Path) -> None:
    with running_hub(tmp_path, "--demo", "1") as hub:
        assert "add a host" not in hub.greeting


def test_listening_in_the_open_names_the_file_that_is_read(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("demo: never\n")
    answer = gpudeck(tmp_path, "up", "--config", "mine.yaml", "--listen", "0.0.0.0:0")
    assert (answer.returncode, f"(only users with an account) to {tmp_path}/mine.yaml" in answer.stderr) == (2, True)


def test_a_path_beside_the_hub_is_told_from_a_hub(tmp_path: Path) -> None:
    with running_hub(tmp_path, "--demo", "1") as hub:
        answer = gpudeck(tmp_path, "show", "--hub", f"{hub.url.replace('//', '//me:hunter2@')}/wrong")
    assert (answer.returncode, answer.stdout) == (3, "")
    assert f"{hub.url.replace('//', '//…@')}/wrong answers, but is no gpudeck hub." in answer.stderr
