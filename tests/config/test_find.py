"""Which file counts."""

from pathlib import Path

import pytest

from gpudeck.config import ConfigMistakes, find_config

PLACES = ["cwd/gpudeck.yaml", "home/.config/gpudeck/gpudeck.yaml", "etc/gpudeck/gpudeck.yaml"]


def write(root: Path, *names: str) -> None:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("")


def find(root: Path, explicit: str | None = None, variable: str = "") -> Path | None:
    environ = {"GPUDECK_CONFIG": variable}
    return find_config(explicit, environ, cwd=root / "cwd", home=root / "home", etc=root / "etc")


@pytest.mark.parametrize("first", range(3))
def test_first_place_that_has_a_file_counts(tmp_path: Path, first: int) -> None:
    write(tmp_path, *PLACES[first:])
    assert find(tmp_path) == tmp_path / PLACES[first]


def test_no_file_anywhere_is_no_mistake(tmp_path: Path) -> None:
    assert find(tmp_path) is None


def test_file_asked_for_counts_before_all_places(tmp_path: Path) -> None:
    write(tmp_path, "cwd/mine.yaml", "cwd/variable.yaml", *PLACES)
    assert find(tmp_path, explicit="mine.yaml", variable="variable.yaml") == tmp_path / "cwd/mine.yaml"
    assert find(tmp_path, variable="variable.yaml") == tmp_path / "cwd/variable.yaml"


def test_tilde_in_the_variable_means_home(tmp_path: Path) -> None:
    write(tmp_path, "home/mine.yaml")
    assert find(tmp_path, variable="~/mine.yaml") == tmp_path / "home/mine.yaml"


def test_folder_that_was_deleted_and_user_without_a_home_are_passed_over(tmp_path: Path) -> None:
    write(tmp_path, "etc/gpudeck/gpudeck.yaml")
    assert find_config(None, {}, cwd=None, home=None, etc=tmp_path / "etc") == tmp_path / "etc/gpudeck/gpudeck.yaml"


def test_folder_with_the_name_of_the_file_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / PLACES[0]).mkdir(parents=True)
    write(tmp_path, PLACES[1])
    assert find(tmp_path) == tmp_path / PLACES[1]


def test_missing_file_named_by_the_option_is_a_mistake(tmp_path: Path) -> None:
    write(tmp_path, *PLACES)
    with pytest.raises(ConfigMistakes) as caught:
        find(tmp_path, explicit="none.yaml")
    place = tmp_path / "cwd/none.yaml"
    assert str(caught.value) == f"{place}: no such file, or its folder may not be read; --config names it"


def test_missing_file_named_by_the_variable_is_a_mistake(tmp_path: Path) -> None:
    write(tmp_path, *PLACES)
    with pytest.raises(ConfigMistakes, match=r"\$GPUDECK_CONFIG names it"):
        find(tmp_path, variable="/none.yaml")


@pytest.mark.parametrize("odd", ["", ".", "a\0b", "x" * 5000])
def test_odd_name_is_a_mistake_and_no_other_error(tmp_path: Path, odd: str) -> None:
    with pytest.raises(ConfigMistakes):
        find(tmp_path, explicit=odd)
