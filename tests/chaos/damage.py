"""Files that were damaged while the hub was off: flipped bytes, zeroed pages, files cut short."""

import contextlib
import random
import shutil
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from msgspec import Struct

from chaos.compare import compare_samples
from chaos.figures import Figure, Outcome, at_most
from chaos.hosts import Fleet, reporting
from chaos.hub import NO_COMPILER, ChaosHub, chaos_hub
from fakes.hubs import start
from fakes.waiting import wait_until

_PAGE = 4096
_FILES = ("history.db", "gpudeck.db")
_DAY = 86_400


def flip(file: Path, chance: random.Random) -> None:
    body = bytearray(file.read_bytes())
    for _ in range(max(8, len(body) // 2000)):
        body[chance.randrange(min(100, len(body) - 1), len(body))] ^= 1 << chance.randrange(8)
    file.write_bytes(body)


def zero_pages(file: Path, chance: random.Random) -> None:
    body = bytearray(file.read_bytes())
    for _ in range(3):
        page = chance.randrange(1, max(2, len(body) // _PAGE)) * _PAGE
        body[page : page + _PAGE] = bytes(len(body[page : page + _PAGE]))
    file.write_bytes(body)


def zero_head(file: Path, chance: random.Random) -> None:
    del chance
    with file.open("r+b") as opened:
        opened.write(bytes(_PAGE))


def cut(file: Path, chance: random.Random) -> None:
    with file.open("r+b") as opened:
        opened.truncate(int(file.stat().st_size * chance.uniform(0.3, 0.9)))


Damage = Callable[[Path, random.Random], None]
DAMAGES: Final[dict[str, Damage]] = {
    "flipped bytes": flip,
    "zeroed pages": zero_pages,
    "zeroed head": zero_head,
    "cut short": cut,
}


class Tally(Struct):
    """How many damages there were, and what came of them."""

    damages: int = 0
    not_started: int = 0
    not_named: int = 0
    not_kept: int = 0
    wrong: int = 0
    named_wrong: int = 0
    raw: int = 0


def run(folder: Path, *, seed: int, short: bool, kills: int) -> Outcome:
    del kills
    outcome = Outcome("damaged files")
    if NO_COMPILER:
        return Outcome(outcome.scenario, not_run=NO_COMPILER)
    sound, fleets = _make_sound(folder / "sound")
    jobs = [(number, name, file) for number in range(1 if short else 3) for file in _FILES for name in DAMAGES]
    if short:
        jobs = [(0, "flipped bytes", "history.db"), (0, "zeroed head", "history.db")]
    history, main, agents = Tally(), Tally(), Tally()

    def suffer(number: int, name: str, file: str) -> None:
        chance = random.Random(f"{seed} {number} {name} {file}")
        with _damaged(folder / f"{file}-{name}-{number}", sound, file, DAMAGES[name], chance) as hub:
            if file == "history.db":
                _try_history(hub, fleets, history, f"{file}, {name}", outcome.notes)
            else:
                _try_main(hub, main, f"{file}, {name}", outcome.notes)

    def suffer_as_agent(number: int, name: str) -> None:
        place = folder / f"agent-{name}-{number}"
        place.mkdir()
        with chaos_hub(place) as hub:
            chance = random.Random(f"{seed} {number} {name}")
            _try_agent(hub, DAMAGES[name], chance, agents, f"the agent's outbox, {name}", outcome.notes)

    # Most of it is waiting.
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda job: suffer(*job), jobs))
        list(pool.map(lambda name: suffer_as_agent(0, name), () if short else DAMAGES))
    outcome.figures = [
        at_most(f"history.db: the hub does not start, of {history.damages}", history.not_started, 0),
        at_most("history.db: damage that `history verify` does not name", history.not_named, 0),
        at_most("history.db: new samples not kept, even after `history repair`", history.not_kept, 0),
        at_most("wrong values read from a file that `history verify` calls sound", history.wrong, 0),
        Figure("values read differently from a file whose damage it names", str(history.named_wrong)),
        at_most("tracebacks instead of messages", history.raw + main.raw + agents.raw, 0),
        *(
            [at_most(f"gpudeck.db: neither a start nor a reason, of {main.damages}", main.not_named, 0)]
            if main.damages
            else []
        ),
        *(
            [at_most(f"agent's outbox: nothing new arrives, of {agents.damages}", agents.not_kept, 0)]
            if agents.damages
            else []
        ),
    ]
    return outcome


def _make_sound(folder: Path) -> tuple[Path, list[Fleet]]:
    """A data folder with sealed hours of yesterday and open ones of now."""
    folder.mkdir()
    fleets = []
    with chaos_hub(folder) as hub:
        for offset in (-_DAY, 0):
            hub.set_clock(offset)
            hub.start()
            clock = (lambda: time.time() - _DAY) if offset else time.time
            with reporting(hub.port, hub.token, 3, clock=clock, run_id=f"run {offset}") as fleet:
                wait_until(lambda fleet=fleet: fleet.seconds() >= 8, "eight seconds", 60)
                fleet.stop(deliver=20)
            fleets.append(fleet)
            time.sleep(4)
            hub.stop()
    return folder / "data", fleets


@contextlib.contextmanager
def _damaged(place: Path, sound: Path, name: str, damage: Damage, chance: random.Random) -> Iterator[ChaosHub]:
    place.mkdir()
    shutil.copytree(sound, place / "data")
    with chaos_hub(place) as hub:
        damage(hub.data_dir / name, chance)
        yield hub


def _try_history(hub: ChaosHub, fleets: list[Fleet], tally: Tally, name: str, notes: list[str]) -> None:
    tally.damages += 1
    named = hub.command("history", "verify")
    is_named = named.returncode != 0 and bool((named.stdout + named.stderr).strip())
    if not is_named:
        tally.not_named += 1
        notes.append(f"{name}: verify says {named.stdout.strip()[-120:]}")
    hub.start(wait=False)
    try:
        hub.wait_healthy()
    except AssertionError as error:
        tally.not_started += 1
        notes.append(f"{name}: {str(error)[-300:]}")
        return
    is_kept, wrong = _keeps(hub, fleets, name, notes)
    hub.stop()
    if not is_kept:
        repaired = hub.command("history", "repair")
        hub.start()
        is_kept, more = _keeps(hub, fleets, f"{name}, repaired", notes)
        wrong += more
        hub.stop()
        if not is_kept:
            tally.not_kept += 1
            notes.append(f"{name}: not kept; repair: {(repaired.stdout + repaired.stderr).strip().splitlines()[-1:]}")
    tally.named_wrong += wrong if is_named else 0
    tally.wrong += 0 if is_named else wrong
    if "Traceback" in hub.read_log() + named.stderr:
        tally.raw += 1
        notes.append(f"{name}: {_last_line_of_traceback(hub.read_log() + named.stderr)}")


def _keeps(hub: ChaosHub, fleets: list[Fleet], name: str, notes: list[str]) -> tuple[bool, int]:
    """Whether what is reported now can be read back, and how many values, of before too, are read wrongly."""
    with reporting(hub.port, hub.token, 3, run_id=name) as fleet:
        wait_until(lambda: fleet.seconds() >= 4, "four seconds", 60)
        fleet.stop(deliver=20)
    time.sleep(2.5)
    try:
        rows = hub.samples(fleet.epoch - 1, time.time() + 60)
        new = compare_samples(rows, fleet, must=lambda second: second > 0)
        old = [compare_samples(hub.samples(one.epoch - 1, one.epoch + one.last_second() + 2), one) for one in fleets]
    except AssertionError:
        return False, 0
    wrong = [one for one in (new, *old) if one.wrong]
    notes += [f"{name}: {one.notes[0]}" for one in wrong]
    return new.lost_seconds <= 1, sum(one.wrong for one in wrong)


def _try_main(hub: ChaosHub, tally: Tally, name: str, notes: list[str]) -> None:
    """Accounts and tokens are in it: a hub that cannot read it may refuse to start, and says why and what to do."""
    tally.damages += 1
    hub.start(wait=False)
    with contextlib.suppress(AssertionError):
        hub.wait_healthy()
    is_running = hub.is_running()
    hub.stop()
    said = hub.read_log()
    if "Traceback" in said:
        tally.raw += 1
        notes.append(f"{name}: {_last_line_of_traceback(said)}")
    if not is_running and "gpudeck.db" not in said:
        tally.not_named += 1
        notes.append(f"{name}: {said.strip()[-200:]}")


def _try_agent(hub: ChaosHub, damage: Damage, chance: random.Random, tally: Tally, name: str, notes: list[str]) -> None:
    """A real agent fills its outbox while the hub is away, is killed, and starts again on what is left of it."""
    tally.damages += 1
    folder = hub.folder / "agent"
    folder.mkdir()
    shutil.copyfile(hub.token_file, folder / "token")
    arguments = ("--hub", hub.url, "--token-file", "token", "--name", "gpu90", "--interval", "0.5s")
    agent = start(folder, "log", "agent", *arguments)
    try:
        wait_until(lambda: list(folder.glob("outbox/gpu90/*.segment")), "an outbox on disk", 60)
        agent.kill()
        agent.communicate()
        for file in folder.glob("outbox/gpu90/*.segment"):
            damage(file, chance)
        hub.start()
        agent = start(folder, "log", "agent", *arguments)
        with contextlib.suppress(AssertionError):
            wait_until(lambda: hub.statuses().get("gpu90") == "up", "a report", 60)
        if hub.statuses().get("gpu90") != "up":
            tally.not_kept += 1
            notes.append(f"{name}: {(folder / 'log').read_text()[-200:]}")
    finally:
        agent.kill()
        agent.communicate()
        hub.stop()
    if "Traceback" in (folder / "log").read_text() + hub.read_log():
        tally.raw += 1
        notes.append(f"{name}: {_last_line_of_traceback((folder / 'log').read_text() + hub.read_log())}")


def _last_line_of_traceback(log: str) -> str:
    lines = log.partition("Traceback")[2].splitlines()
    return next((line for line in lines[1:] if line and not line.startswith(" ")), "")[:200]
