"""The site is built of all documents, without a broken link, and needs nothing from outside."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from docs.documents import ROOT

_FOREIGN = re.compile(r"<(?:script|link|img|iframe|source)\b[^>]*\b(?:src|href|srcset)=[\"']?(?:https?:)?//[^\s>]+")
_PARTS = ("mkdocs.yml", "docs", "CHANGELOG.md", "CONTRIBUTING.md", "README.md")


def build(root: Path, target: Path) -> subprocess.CompletedProcess[str]:
    """Not `--quiet`, which drops warnings before they are counted."""
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "mkdocs", "build", "--strict", "--site-dir", str(target)],
        cwd=root,
        env={"PATH": "/usr/bin:/bin", "NO_MKDOCS_2_WARNING": "1", "HOME": str(target.parent)},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("site") / "site"
    answer = build(ROOT, target)
    assert answer.returncode == 0, answer.stderr
    return target


def test_every_document_is_a_page(site: Path) -> None:
    documents = {path.relative_to(ROOT / "docs").with_suffix(".html") for path in (ROOT / "docs").rglob("*.md")}
    above = {Path(f"{name}.html") for name in ("changelog", "contributing", "readme")}
    assert documents | above <= {path.relative_to(site) for path in site.rglob("*.html")}


def test_the_site_needs_nothing_from_outside(site: Path) -> None:
    found = [match for page in site.rglob("*.html") for match in _FOREIGN.findall(page.read_text())]
    styles = [style.name for style in site.rglob("*.css") if re.search(r"url\(\"?(?:https?:)?//", style.read_text())]
    assert (found, styles) == ([], [])


def test_pictures_and_blocks_are_shown(site: Path) -> None:
    assert 'src="images/fleet.png"' in (site / "page.html").read_text()
    assert (site / "images" / "fleet.png").exists()
    assert "```" not in re.sub(r"<code>.*?</code>", "", (site / "first-steps.html").read_text(), flags=re.DOTALL)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[gone](nowhere.md)", "nowhere.md"),
        ("[gone](install.md#nowhere)", "nowhere"),
        ("![gone](images/nowhere.png)", "images/nowhere.png"),
    ],
)
def test_a_broken_link_fails_the_build(tmp_path: Path, text: str, told: str) -> None:
    for part in _PARTS:
        source = ROOT / part
        (shutil.copytree if source.is_dir() else shutil.copy)(source, tmp_path / part)
    with (tmp_path / "docs" / "states.md").open("a") as page:
        page.write(f"\n{text}\n")
    answer = build(tmp_path, tmp_path / "site")
    assert answer.returncode != 0
    assert told in answer.stderr + answer.stdout


@pytest.mark.slow
def test_a_page_that_the_contents_do_not_name_fails_the_build(tmp_path: Path) -> None:
    for part in _PARTS:
        source = ROOT / part
        (shutil.copytree if source.is_dir() else shutil.copy)(source, tmp_path / part)
    (tmp_path / "docs" / "lost.md").write_text("# Lost\n")
    answer = build(tmp_path, tmp_path / "site")
    assert answer.returncode != 0
    assert "lost.md" in answer.stderr + answer.stdout
