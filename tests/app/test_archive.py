from pathlib import Path

from gpudeck.history.embedded.store import view_file


def hosts_in(path: Path) -> list[str]:
    if not path.exists():
        return []
    with view_file(path) as view:
        return [host.name for host in view.hosts().values()]
