"""Whole files: bad ones with the exact text of their mistakes, good ones with the settings they hold."""

from pathlib import Path

import pytest
import yaml

from config.example import Address, Email, Example, Host, Hub, Login, Quota
from gpudeck.config import ConfigMistakes, load_bytes, load_file

HERE = Path(__file__).parent
BAD = sorted((HERE / "bad").glob("*.yaml"))
EVERYTHING = Example(
    listen=Address("", 8042),
    data_dir="~/data",
    demo=True,
    ratio=0.001,
    level="verbose",
    retry="never",
    hub=Hub(
        read="open",
        idle_after=5400.0,
        down_after=None,
        work_percent=2.0,
        cache_bytes=20 * 10**9,
        workers=10,
        token="0123456789",
        window="22:30",
    ),
    hosts=[
        Host("gpu1", Address("::1", 7080), {"rack": "4", "on": "yes", "7": "seven"}, [0, 1]),
        Host("gpu2.example.org", Address("gpu2.example.org", 7080), {"rack": "4", "on": "yes", "7": "seven"}),
    ],
    quotas={"vision": Quota(soft=2, hard=4), "speech": Quota()},
    login=Login("ada", "1815"),
    notify=[Email(["ada@example.org"], "quiet")],
    groups=["vision", "speech"],
)


@pytest.fixture(params=["libyaml", "pure Python"])
def parser(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of PyYAML's parsers; libyaml's is missing on some platforms."""
    loaders = {"libyaml": getattr(yaml, "CSafeLoader", yaml.SafeLoader), "pure Python": yaml.SafeLoader}
    monkeypatch.setattr(yaml, "CSafeLoader", loaders[request.param], raising=False)


@pytest.mark.parametrize("path", BAD, ids=lambda path: path.stem)
def test_bad_file_is_answered_with_its_exact_message(path: Path) -> None:
    with pytest.raises(ConfigMistakes) as caught:
        load_bytes(path.read_bytes(), path.name, Example)
    assert f"{caught.value}\n" == path.with_suffix(".expected").read_text()


@pytest.mark.parametrize("path", BAD, ids=lambda path: path.stem)
def test_message_of_a_bad_file_is_printable_and_shows_no_secret(path: Path) -> None:
    lines = path.with_suffix(".expected").read_text().splitlines()
    assert all(line.isprintable() and line.startswith(f"{path.name}:") for line in lines)
    assert not any("hunter2" in line for line in lines)


def test_every_bad_file_has_its_message_and_no_message_is_left_over() -> None:
    assert len(BAD) >= 20
    assert {path.stem for path in BAD} == {path.stem for path in (HERE / "bad").glob("*.expected")}


@pytest.mark.usefixtures("parser")
def test_file_that_sets_everything_is_read_into_types() -> None:
    assert load_file(HERE / "good" / "everything.yaml", Example) == EVERYTHING


@pytest.mark.parametrize("name", ["empty", "only_comments"])
def test_file_that_sets_nothing_means_every_default(name: str) -> None:
    assert load_file(HERE / "good" / f"{name}.yaml", Example) == Example()


def test_file_that_cannot_be_read_is_a_mistake_of_the_whole_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigMistakes) as caught:
        load_file(tmp_path / "none.yaml", Example)
    assert str(caught.value) == f"{tmp_path / 'none.yaml'}: cannot be read: no such file or directory"


def test_folder_in_place_of_the_file_is_a_mistake(tmp_path: Path) -> None:
    with pytest.raises(ConfigMistakes, match="cannot be read: is a directory"):
        load_file(tmp_path, Example)
