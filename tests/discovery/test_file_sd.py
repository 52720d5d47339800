"""Prometheus' file_sd: YAML and JSON, globs, watched."""

import asyncio
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpudeck.discovery.host_names import is_host_name
from gpudeck.discovery.inputs import MAX_HOSTS, HostFindings
from gpudeck.discovery.prometheus_sd import FileSd, FileSdSettings, read_groups
from gpudeck.model.errors import Temporary
from gpudeck.model.target import Target


def provider_of(*paths: Path) -> FileSd:
    return FileSd(FileSdSettings([str(path) for path in paths]))


def names_in(provider: FileSd) -> list[str]:
    return [target.name for target in asyncio.run(provider.find())]


def write(file: Path, text: str, moment: int) -> None:
    file.write_text(text)
    os.utime(file, (moment, moment))


def test_yaml_is_read_with_labels_as_they_are_written(tmp_path: Path) -> None:
    file = tmp_path / "gpus.yml"
    file.write_text("""
- targets: ['gpu01:9400', "[2001:db8::1]:9400", gpu02]
  labels: {rack: 03, up: yes, __meta_dc: east, __scheme__: https, __metrics_path__: /gpu}
- targets: []
- targets: [10.0.0.1:9400]
""")
    provider = provider_of(file)
    reach = {"via": "scrape", "scheme": "https", "path": "/gpu", "labels": {"rack": "03", "up": "yes"}}
    assert asyncio.run(provider.find()) == [
        Target(name="gpu01", port=9400, origin=provider.origin, **reach),
        Target(name="2001-db8--1", address="2001:db8::1", port=9400, origin=provider.origin, **reach),
        Target(name="gpu02", origin=provider.origin, **reach),
        Target(name="10.0.0.1", via="scrape", port=9400, origin=provider.origin),
    ]
    assert provider.problems == []


def test_json_is_read(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('[{"targets": ["gpu01:9400"], "labels": {"rack": "b3"}}]')
    (target,) = asyncio.run(provider_of(tmp_path / "*.json").find())
    assert (target.name, target.port, target.labels) == ("gpu01", 9400, {"rack": "b3"})


def test_files_that_fit_a_pattern_come_and_go(tmp_path: Path) -> None:
    provider = provider_of(tmp_path / "*.yml", tmp_path / "a*")
    write(tmp_path / "a.yml", "[{targets: [a]}]", 1)
    assert names_in(provider) == ["a"]
    write(tmp_path / "b.yml", "[{targets: [b]}]", 1)
    assert names_in(provider) == ["a", "b"]
    (tmp_path / "a.yml").unlink()
    assert names_in(provider) == ["b"]
    assert provider.problems == [f"{tmp_path}/a* fits no file."]


def test_broken_file_keeps_what_it_said_and_hides_no_neighbour(tmp_path: Path) -> None:
    provider = provider_of(tmp_path / "*.yml")
    write(tmp_path / "a.yml", "[{targets: [a1]}]", 1)
    write(tmp_path / "b.yml", "[{targets: [b1]}]", 1)
    assert names_in(provider) == ["a1", "b1"]
    write(tmp_path / "a.yml", "[{targets: [a1", 2)
    write(tmp_path / "b.yml", "[{targets: [b1, b2]}]", 2)
    names_in(provider)
    assert names_in(provider) == ["a1", "b1", "b2"]
    (told,) = provider.problems
    assert told.startswith(f"{tmp_path}/a.yml cannot be used: line 2: did not find")
    write(tmp_path / "a.yml", "[{targets: [a2]}]", 3)
    names_in(provider)
    assert names_in(provider) == ["a2", "b1", "b2"]
    assert provider.problems == []


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("<html><body>", "it is no list of groups of targets"),
        ("{targets: [a]}", "it is no list of groups of targets"),
        ("[" * 100_000, "it is nested too deeply"),
        ("- " * 100_000, "it is nested too deeply"),
        ("{a: " * 900 + "}" * 900, "it is nested too deeply"),
        ("a: [", "line 2: "),
        ("- \x00", ""),
    ],
)
def test_file_that_alone_is_no_list_is_temporary(tmp_path: Path, text: str, reason: str) -> None:
    (tmp_path / "a.yml").write_text(text)
    with pytest.raises(Temporary, match=f"a.yml cannot be used: {reason}"):
        names_in(provider_of(tmp_path / "a.yml"))


def test_missing_file_and_missing_folder_are_temporary(tmp_path: Path) -> None:
    with pytest.raises(Temporary, match=r"a\.yml cannot be read: no such file"):
        names_in(provider_of(tmp_path / "a.yml"))
    with pytest.raises(Temporary, match=r"the folder .*/gone is not there"):
        names_in(provider_of(tmp_path / "gone" / "*.yml"))


def test_bad_target_and_bad_group_are_told_and_hide_no_neighbour() -> None:
    findings = HostFindings()
    groups = [
        {"targets": ["a:1", "b:x", "c[1-2]:1", "ada@d", 7, "e:1"]},
        7,
        {"targets": "f"},
        {"targets": ["g"], "labels": []},
        {"targets": ["h"], "labels": ["x"]},
        {"targets": ["i"], "labels": {"__scheme__": "ftp"}},
        {"targets": ["j"], "labels": {"__metrics_path__": "x"}},
        {"targets": ["k"], "labels": {"n": 1}},
    ]
    read_groups(groups, "file_sd x", "scrape", findings, "x.yml")
    assert [target.name for target in findings.targets] == ["a", "e", "k"]
    assert [problem.partition(": ")[0] for problem in findings.problems] == [
        *["x.yml, group 1"] * 4,
        *(f"x.yml, group {number}" for number in (2, 3, 4, 5, 6, 7)),
    ]


def test_aliases_cannot_unfold_into_more_hosts_than_are_watched(tmp_path: Path) -> None:
    many = ", ".join(f"h{number}" for number in range(1000))
    (tmp_path / "a.yml").write_text(f"- &a {{targets: [{many}]}}\n" + "- *a\n" * 1000)
    provider = provider_of(tmp_path / "a.yml")
    assert len(names_in(provider)) == MAX_HOSTS
    assert any("from here on hosts are left out" in problem for problem in provider.problems)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8) | st.sampled_from(["a:1", "[::1]:2", "x@y"]),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(["targets", "labels", "__scheme__", "__metrics_path__", "rack"]), inner)
    ),
    max_leaves=20,
)


@given(JSON | st.lists(st.fixed_dictionaries({"targets": JSON}, optional={"labels": JSON})))
def test_any_value_is_hosts_and_problems_or_a_value_error(groups: object) -> None:
    findings = HostFindings()
    try:
        read_groups(groups, "x", "scrape", findings)
    except ValueError as error:
        findings.add_problem(str(error))
    assert all(is_host_name(target.name) for target in findings.targets)
    assert all(problem.isprintable() for problem in findings.problems)
