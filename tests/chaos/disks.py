"""A disk that is full: while the hub runs, and when it starts. A small tmpfs in a mount namespace of its own."""

import contextlib
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct

from alerts.notifiers.sinks import running_webhook
from chaos.compare import compare_samples
from chaos.figures import Figure, Outcome, at_most, holds, took
from chaos.hosts import reporting
from chaos.hub import ChaosHub, chaos_hub
from fakes.waiting import wait_until

_SIZE = 16 << 20


def run(folder: Path, *, seed: int, short: bool, kills: int) -> Outcome:
    del seed, kills
    outcome = Outcome("full disk")
    number, seconds = (2, 4) if short else (6, 15)
    mount = folder / "disk"
    mount.mkdir()
    with contextlib.ExitStack() as parts:
        hook = parts.enter_context(running_webhook())
        try:
            disk = parts.enter_context(small_disk(mount))
        except OSError as error:
            return Outcome(outcome.scenario, not_run=str(error))
        hub = parts.enter_context(chaos_hub(folder, webhook=hook.url, data_dir=mount / "data", prefix=disk.prefix))
        disk.make_folder("data")
        hub.start()
        fleet = parts.enter_context(reporting(hub.port, hub.token, number))
        wait_until(lambda: fleet.has_reported(0) and fleet.seconds() > 3, "reports", 60)
        disk.fill()
        time.sleep(seconds)
        problems, statuses = hub.get("/api/v1/fleet")["problems"], hub.statuses()
        disk.free()
        after_running = _until_kept(hub)
        counted = hub.get("/api/v1/about")["history"]["samples_dropped"]
        disk.fill()
        hub.kill()
        hub.start(wait=False)
        with contextlib.suppress(AssertionError):
            hub.wait_healthy()
        starts = hub.is_running()
        time.sleep(seconds)
        disk.free()
        if not hub.is_running():
            hub.start()
        after_start = _until_kept(hub)
        fleet.stop(deliver=60)
        counted += hub.get("/api/v1/about")["history"]["samples_dropped"]
        alerts = [alert for alert in hub.alerts() if alert["rule"] != "history_failing"]
        hub.stop()
        found = compare_samples(hub.samples(fleet.epoch - 60, time.time() + 60), fleet)
        verified = hub.command("history", "verify")
    lost = sum(map(len, found.lost.values()))
    outcome.figures = [
        Figure("lost seconds of all hosts while the disk is full", f"{lost} s"),
        # Each host's last two seconds before the kill (`_WRITTEN` in chaos.compare): the hub could not count them.
        at_most("of them not counted by the hub itself", max(0, lost - counted), 2 * number, "s"),
        at_most("duplicates", found.duplicates, 0),
        at_most("wrong values", found.wrong, 0),
        at_most("false alerts", len(alerts), 0),
        holds("the hub says that the history is not kept", bool(problems)),
        holds("hosts stay up while the disk is full", set(statuses.values()) == {"up"}),
        holds("the hub starts on a full disk", starts),
        holds("history verify finds no damage afterwards", verified.returncode == 0),
        took("recovery: from free space until samples are kept, running", [after_running]),
        took("recovery: the same after a start on a full disk", [after_start]),
    ]
    outcome.notes = [*found.notes, *verified.stdout.splitlines()[:3], *(f"alert: {a['title']}" for a in alerts[:3])]
    return outcome


class Disk(Struct):
    """`prefix` starts a command that sees it. `root` is how we do."""

    prefix: tuple[str, ...]
    root: Path

    def make_folder(self, name: str) -> None:
        (self.root / name).mkdir(exist_ok=True)

    def fill(self) -> float:
        """Not one page is left; when that was."""
        with (self.root / "ballast").open("ab", buffering=0) as ballast, contextlib.suppress(OSError):
            while True:
                ballast.write(b"x" * 4096)
        return time.time()

    def free(self) -> float:
        (self.root / "ballast").unlink()
        return time.time()


@contextlib.contextmanager
def small_disk(mount: Path) -> Iterator[Disk]:
    """Seen by what `prefix` starts, and gone with the last of it. Raises OSError where it may not be made."""
    spaces = ["--mount"] if os.geteuid() == 0 else ["--user", "--map-root-user", "--mount"]
    script = 'mount -t tmpfs -o size="$1" none "$2" && echo ready && exec cat'
    holder = subprocess.Popen(
        ["unshare", *spaces, "--propagation", "private", "sh", "-c", script, "sh", str(_SIZE), str(mount)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    try:
        assert holder.stdout is not None
        if holder.stdout.readline() != b"ready\n":
            raise OSError("needs a mount namespace of its own (unshare --mount), as root or with user namespaces")
        prefix = ("nsenter", f"--target={holder.pid}", *spaces[-1:], *spaces[:-2], "--")
        yield Disk(prefix, Path(f"/proc/{holder.pid}/root{mount}"))
    finally:
        holder.communicate(timeout=20)


def _until_kept(hub: ChaosHub) -> float:
    """How long it takes until the hub has no problem with its history, and shows a sample that came since."""
    begun, since = time.monotonic(), time.time()

    def is_kept() -> bool:
        with contextlib.suppress(OSError):
            if not hub.get("/api/v1/fleet")["problems"]:
                return bool(hub.samples(since, time.time() + 60))
        return False

    wait_until(is_kept, "samples again", 90)
    return time.monotonic() - begun
