"""CONTRIBUTING.md is followed to the letter: its code blocks are put into a copy of the tree, and there they work.

A block that changes a file begins with a line that names it:

    # src/gpudeck/model/catalog.py, after: clock_memory_mhz
    # src/gpudeck/discovery/netbox.py, new file
    // web/src/gpu/gpuCharts.ts, after: 'clock_memory_mhz'

`after` and `before` are followed by the beginning of the one line in that file where the block goes.
"""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent, indent
from typing import NamedTuple

import pytest

from docs.documents import ROOT

BUDGETS = {"Add a metric": 9, "Add an alert rule": 24, "Add a discovery provider": 200, "Add a route": 15}
"""Lines in the package that are not empty."""
ROUTE = "POST /api/v1/accounts/{name}/logout"
COPIED = ("src/gpudeck", "tests", "docs", "web/src/gpu", "pyproject.toml")


class Change(NamedTuple):
    section: str
    file: str
    place: str
    anchor: str
    lines: str

    def apply(self, root: Path) -> None:
        path = root / self.file
        if self.place == "new file":
            assert not path.exists(), f"{self.file} exists already"
            path.write_text(self.lines)
            return
        lines = path.read_text().splitlines(keepends=True)
        found = [number for number, line in enumerate(lines) if line.lstrip().startswith(self.anchor)]
        assert len(found) == 1, f"{self.file} has {len(found)} lines that begin with {self.anchor!r}, not one"
        line = lines[found[0]]
        margin = line[: len(line) - len(line.lstrip())]
        lines.insert(found[0] + (self.place == "after"), indent(self.lines, margin))
        path.write_text("".join(lines))


def read_changes(text: str) -> Iterator[Change]:
    for section in re.split(r"^## ", text, flags=re.MULTILINE)[1:]:
        for block in re.findall(r"^ *```\w+\n(.*?)^ *```$", section, re.DOTALL | re.MULTILINE):
            first, _, lines = dedent(block).partition("\n")
            if found := re.fullmatch(r"(?:#|//) (\S+), (new file|after: |before: )(.*)", first):
                yield Change(section.partition("\n")[0], found[1], found[2].strip(": "), found[3], lines)


CHANGES = list(read_changes((ROOT / "CONTRIBUTING.md").read_text()))


def test_the_packages_are_listed_in_the_layers_of_the_import_contract() -> None:
    section = (ROOT / "CONTRIBUTING.md").read_text().partition("## The packages")[2]
    names = [line[:28].strip() for line in section.split("```")[1].partition("\n\n")[0].splitlines()[1:]]
    listed = [set(layer.split(" · ")) for layer in "\n".join(names).replace("·\n", "· ").splitlines()]
    first, *_ = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    assert listed == [set(layer.replace("gpudeck.", "").split(" | ")) for layer in first["layers"]]


@pytest.mark.parametrize("section", BUDGETS)
def test_what_is_added_often_costs_few_lines(section: str) -> None:
    own = [change for change in CHANGES if change.section == section and change.file.startswith("src/")]
    lines = [line for change in own for line in change.lines.splitlines() if line.strip()]
    assert 0 < len(lines) <= BUDGETS[section]


@pytest.fixture(scope="module")
def contributed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy with all changes. Compiled files come along, with the times of their sources: few are compiled again."""
    root = tmp_path_factory.mktemp("contributed")
    ignore = shutil.ignore_patterns("page", "captures")
    for name in COPIED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, root / name, ignore=ignore)
        else:
            shutil.copy2(ROOT / name, root / name)
    (root / "tests" / "captures").symlink_to(ROOT / "tests" / "captures")
    for change in CHANGES:
        change.apply(root)
    return root


def run(root: Path, *command: str) -> None:
    environment = os.environ | {"PYTHONPATH": str(root / "src")}
    ended = subprocess.run(
        [sys.executable, "-m", *command], cwd=root, env=environment, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr


@pytest.mark.timeout(600)
def test_the_changes_keep_to_the_house_rules(contributed: Path) -> None:
    files = sorted({change.file for change in CHANGES if change.file.endswith(".py")})
    run(contributed, "ruff", "check", *files)
    run(contributed, "ruff", "format", "--check", *files)


@pytest.mark.timeout(600)
def test_metric_rule_route_and_provider_work_and_pass_the_tests_that_are_there(contributed: Path) -> None:
    run(
        contributed,
        *("pytest", "-p", "no:cacheprovider", "-p", "no:xdist"),
        "tests/docs/contributed.py",
        "tests/docs/test_alerts.py",
        "tests/alerts/test_rules.py::test_every_rule_has_limits_and_every_limit_a_rule",
        "tests/alerts/test_rules.py::test_rule_is_quiet_where_nothing_could_be_read[memory_hot]",
        "tests/collectors/test_nvml.py::test_values_come_in_the_units_of_the_catalog",
        "tests/collectors/simulated/test_values.py::test_what_is_unknown_has_a_reason_of_a_real_machine",
        "tests/api/test_metrics.py::test_every_metric_of_the_catalog_is_told_with_its_labels",
        "tests/api/test_access_matrix.py::test_every_route_has_an_entry_and_every_entry_a_route",
        "tests/api/test_audit_routes.py::test_every_route_that_changes_something_has_an_example",
        f"tests/api/test_audit_routes.py::test_change_leaves_who_did_what_from_where[{ROUTE}]",
        "tests/contract/test_discovery.py::test_every_provider_is_here",
        "tests/contract/test_discovery.py::test_source_that_is_gone_is_an_error_for_the_admin[netbox]",
        "tests/contract/test_discovery.py::test_cancelled_question_leaves_the_provider_usable[netbox]",
    )
