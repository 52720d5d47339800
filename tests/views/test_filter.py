"""The search's words: the same cases as the page's own tests, and what a shell makes of words."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes.fleets import make
from gpudeck.model.view import Fleet, Gpu, Host
from gpudeck.views.filter import fits_bare_host, fits_gpu, join, parse_query, phrases_of, propose, split

SHARED = json.loads((Path(__file__).parent.parent / "captures" / "filter-cases.json").read_text())
HOSTS = [
    make(Host, **(host | {"gpus": [msgspec.to_builtins(make(Gpu, **gpu)) for gpu in host["gpus"]]}))
    for host in SHARED["hosts"]
]


@pytest.mark.parametrize("case", SHARED["cases"], ids=lambda case: case["query"] or "nothing")
def test_words_find_what_they_find_on_the_page(case: dict[str, Any]) -> None:
    query = parse_query(case["query"], phrases_of(HOSTS))
    gpus = [f"{host.name}/{gpu.label}" for host in HOSTS for gpu in host.gpus if fits_gpu(query, host, gpu)]
    bare = [host.name for host in HOSTS if not host.gpus and fits_bare_host(query, host)]
    assert (gpus, bare, list(query.unclear)) == (case["gpus"], case["bare_hosts"], case["unclear"])


@pytest.mark.parametrize("case", SHARED["suggestions"], ids=lambda case: case["query"])
def test_unknown_words_suggest_what_they_suggest_on_the_page(case: dict[str, Any]) -> None:
    fleet = make(Fleet, hosts=[msgspec.to_builtins(host) for host in HOSTS])
    assert propose(fleet, case["query"]) == case["suggest"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["free", "h200"], ["free", "h200"]),
        (["Left Rack"], ["left rack"]),
        (["user:Ann Lee", "-user:bob b", "-big one"], ["user:ann lee", "-user:bob b", "-big one"]),
        (["> 40 G"], [">40g"]),
        ([">", "40G"], [">40g"]),
        (['"left rack"'], ["left rack"]),
        (['a "quoted" phrase'], ["a quoted phrase"]),
        ([""], []),
    ],
)
def test_what_the_shell_kept_together_stays_together(arguments: list[str], words: list[str]) -> None:
    assert split(join(arguments)) == words


@given(st.text(max_size=80))
def test_any_text_is_a_query(text: str) -> None:
    query = parse_query(text)
    assert all(isinstance(fits_gpu(query, host, gpu), bool) for host in HOSTS for gpu in host.gpus)
    assert all(isinstance(fits_bare_host(query, host), bool) for host in HOSTS)


@given(st.lists(st.sampled_from(["free", "-alice", ">40g", "h200", "user:bob", "gpu0"]), max_size=4))
def test_order_of_words_means_nothing(words: list[str]) -> None:
    here, there = parse_query(" ".join(words)), parse_query(" ".join(reversed(words)))
    pairs = [(host, gpu) for host in HOSTS for gpu in host.gpus]
    assert [fits_gpu(here, *pair) for pair in pairs] == [fits_gpu(there, *pair) for pair in pairs]
