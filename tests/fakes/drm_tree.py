"""Machines with AMD and Intel GPUs: the trees of tests/captures/drm, laid out in a folder."""

from pathlib import Path

CAPTURES = Path(__file__).parent.parent / "captures" / "drm"
_ESCAPES = (("\\n", "\n"), ("\\t", "\t"), ("\\0", "\0"))


def lay_out(name: str, root: Path) -> Path:
    """`root`, with the machine called `name` below it. The README beside the captures explains how they are written."""
    folder = root
    for line in (CAPTURES / f"{name}.txt").read_text().splitlines():
        if line.startswith("["):
            folder = root / line.strip("[]")
        elif " -> " in line:
            put_link(folder / line.split(" -> ")[0], line.split(" -> ")[1])
        elif line and not line.startswith("#"):
            file_name, _, text = line.partition(":") if line.endswith(":") else line.partition(": ")
            put(folder / file_name, text)
    return root


def put(path: Path, text: str) -> None:
    """Writes a file as the kernel would show it, in place of what was there."""
    for escape, character in _ESCAPES:
        text = text.replace(escape, character)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    path.write_text(text + "\n" * (not text.endswith("\0")))


def put_link(path: Path, target: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    path.symlink_to(target)


def break_file(path: Path) -> None:
    """Makes every reading of the file fail with EIO, as that of a sick driver does."""
    put_link(path, "/proc/self/mem")
