"""The documents name only what is there: paths, names, links, commands, routes, defaults."""

from collections.abc import Callable
from pathlib import Path

import pytest

from docs.documents import ROOT, Document, all_documents
from docs.existing import (
    broken_links,
    missing_names,
    missing_paths,
    wrong_commands,
    wrong_defaults,
    wrong_make_targets,
    wrong_routes,
)

Check = Callable[[Document], list[str]]

CHECKS: list[Check] = [
    missing_paths,
    missing_names,
    broken_links,
    wrong_make_targets,
    wrong_commands,
    wrong_routes,
    wrong_defaults,
]


def name_of(document: Document) -> str:
    return document.path.relative_to(ROOT).as_posix()


MADE = {f"docs/{name}.md" for name in ("commands", "metrics", "routes")}
"""Made from the code: what they name exists, and is often no name that a person would look for."""
WRITTEN = [document for document in all_documents() if name_of(document) not in MADE]


@pytest.mark.parametrize("document", WRITTEN, ids=name_of)
def test_a_document_names_only_what_exists(document: Document) -> None:
    assert [(check.__name__, mistake) for check in CHECKS for mistake in check(document)] == []


@pytest.mark.parametrize("name", sorted(MADE))
def test_the_links_of_a_page_that_is_made_lead_somewhere(name: str) -> None:
    assert broken_links(Document.read(ROOT / name)) == []


def test_the_index_leads_to_every_document() -> None:
    index = Document.read(ROOT / "docs" / "index.md")
    linked = {(index.path.parent / link.partition("#")[0]).resolve() for link in index.links}
    assert {document.path for document in all_documents()} - {index.path} <= linked


@pytest.mark.parametrize(
    ("text", "check", "mistake"),
    [
        ("see `src/gpudeck/fleet/flet.py`", missing_paths, "src/gpudeck/fleet/flet.py"),
        ("see `CONTRIBUTE.md`", missing_paths, "CONTRIBUTE.md"),
        ("see `tests/fleet/test_fleet.py::test_nothing`", missing_names, "tests/fleet/test_fleet.py::test_nothing"),
        ("`judged()` decides", missing_names, "judged()"),
        ("`FleetState.aply` takes it", missing_names, "FleetState.aply"),
        ("a `Fleeet`", missing_names, "Fleeet"),
        ("a `gpudeck.fleet.fleets`", missing_names, "gpudeck.fleet.fleets"),
        ("set `fleet.down_affter`", missing_names, "fleet.down_affter"),
        ("its `runn_id`", missing_names, "runn_id"),
        ("[here](nowhere.md)", broken_links, "nowhere.md"),
        ("[here](#nowhere)\n# Somewhere", broken_links, "#nowhere"),
        ("`make rum`", wrong_make_targets, "rum"),
        ("```sh\nmake setup && make tets\n```", wrong_make_targets, "tets"),
        ("`gpudeck shwo`", wrong_commands, "gpudeck shwo"),
        ("```\n.venv/bin/gpudeck up --demmo 5\n```", wrong_commands, "gpudeck up --demmo"),
        ("```sh\nX=1 gpudeck show gpu01 --interval 3 | head\n```", wrong_commands, "gpudeck show --interval"),
        ("with `--demmo`", wrong_commands, "--demmo"),
        ("`GET /api/v1/flet`", wrong_routes, "GET /api/v1/flet"),
        ("`POST /api/v1/fleet`", wrong_routes, "POST /api/v1/fleet"),
        ("```json\ncurl http://hub:8042/gpus/api/v2/fleet\n```", wrong_routes, "/api/v2/fleet"),
        ("| `fleet.down_after` | `2m` | when |", wrong_defaults, "fleet.down_after"),
    ],
)
def test_a_wrong_word_is_found(tmp_path: Path, text: str, check: Check, mistake: str) -> None:
    assert check(Document(tmp_path / "page.md", text)) == [mistake]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_right_words_and_words_of_others_are_left_alone(check: Check) -> None:
    text = """
# A title: with `code`
`src/gpudeck/fleet/state.py`, `FleetState.apply`, `judge()`, `fleet.state`, `gpudeck.fleet.state`, `fleet.down_after`,
`run_id`, `tests/fleet/test_fleet.py::test_a_report_becomes_a_host`, `gpudeck.yaml`, `FleetStream.start`, `--demo`,
`free`, `1m`, `GET /api/v1/hosts/{host}`, `/api/v1/hosts/gpu01`, `/schema/openapi.json`, `make run ARGS="--demo 9"`,
`fleet.availability`, `take_clock`, `tests/fakes/nvml/library.c`, [up](#a-title-with-code), [readme](README.md).

| `fleet.down_after` | `1m` | when |

```sh
GPUDECK_DATA_DIR=/tmp/x gpudeck up --demo 6 --listen 127.0.0.1:9000 && curl --data-binary @x localhost:8042/readyz
```
"""
    assert check(Document(ROOT / "page.md", text)) == []
