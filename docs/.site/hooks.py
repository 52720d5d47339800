"""Where the site differs from the documents as the repository shows them: files above `docs` become pages too."""

import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ABOVE = {"CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md", "README.md": "readme.md"}
"""Documents of the repository's root, by what they are called on the site."""
_LINK = re.compile(r"\]\((?P<target>[^)\s#:]+)(?P<anchor>#[^)\s]*)?\)")
_TESTED = re.compile(r"^( *```\w+) tested$", re.MULTILINE)


def on_files(files: Files, *, config: MkDocsConfig, **_: Any) -> Files:
    """Add the documents of the root."""
    root = Path(config.docs_dir).parent
    for name, shown in ABOVE.items():
        files.append(File.generated(config, shown, content=(root / name).read_text()))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, **_: Any) -> str:
    """Links to and from those, and the mark of blocks that the tests run."""
    root = Path(config.docs_dir).parent
    name = next((name for name, shown in ABOVE.items() if shown == page.file.src_uri), None)
    source = root / (name or f"docs/{page.file.src_uri}")
    return _LINK.sub(lambda found: _lead(found, source, root, page), _TESTED.sub(r"\1", markdown))


def _lead(found: re.Match[str], source: Path, root: Path, page: Page) -> str:
    """The link as it has to be on the site: from the repository's places to the site's."""
    target = (source.parent / found["target"]).resolve()
    if not target.is_relative_to(root):
        return found[0]
    place = target.relative_to(root).as_posix()
    shown = ABOVE.get(place) or (place.removeprefix("docs/") if place.startswith("docs/") else None)
    if shown is None:
        return found[0]
    up = "../" * page.file.src_uri.count("/")
    return f"]({up}{shown}{found['anchor'] or ''})"
