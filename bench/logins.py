"""A flood of wrong logins, 1,000 a second, at a hub with local accounts, a real LDAP server and an OIDC provider.

Each phase has a kind of login and a number of addresses from which it comes: 8 are a few machines, 1,000 a botnet.
Beside it 20 agents report, /healthz is asked ten times a second, and users with the right password log in, each at an
address that is new to the hub; they try again as the hub asks them to. The table says how many requests were really
sent, as the attackers share the processors, what the hub's log and its audit log have got, and how long unknown names
and known ones take. It needs slapd and the development packages.
"""

import asyncio
import contextlib
import json
import os
import random
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct, field

from bench.hostile import Client, Honest, percentile, push
from bench.processes import HubUnderTest, rss_mib
from bench.reports import make_rounds
from bench.tables import Row, print_table

RATE, SECONDS, CONNECTIONS = 1_000, 12.0, 2_000
AGENTS, INTERVAL = 20, 2.0
PHASES = (
    ("local", 8),
    ("local", 1_000),
    ("ldap", 8),
    ("ldap", 1_000),
    ("oidc", 8),
    ("oidc", 1_000),
    ("callback", 1_000),
)
TIMED = 25
_PASSWORD, _WRONG = "correct horse battery", "the-secret-of-a-guess"


class Seen(Struct):
    """What honest users and the watch on /healthz have seen, in seconds. `tries` are those of each user who got in."""

    honest: Honest = field(default_factory=Honest)
    health: list[float] = field(default_factory=list)
    logins: list[float] = field(default_factory=list)
    tries: list[int] = field(default_factory=list)
    locked_out: int = 0


def main() -> None:
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
    load = os.getloadavg()[0]
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as name, _running_hub(Path(name)) as hub:
        folder = Path(name)
        token = (folder / "agent.token").read_text().strip()
        rounds = iter(make_rounds(AGENTS, int(SECONDS / INTERVAL) * (len(PHASES) + 1) + 1))
        rows += _timing_rows(hub.port)

        def take() -> list[list[bytes]]:
            return [next(rounds) for _ in range(int(SECONDS / INTERVAL))]

        quiet = asyncio.run(_watch(hub.port, token, take(), "local", 0))
        rows += _rows("in quiet", quiet, Counter(), None)
        for number, (kind, addresses) in enumerate(PHASES, 1):
            before = _count_logs(folder)
            attack = subprocess.Popen(
                [sys.executable, "-m", "bench.logins", str(hub.port), kind, str(addresses), str(number)],
                stdout=subprocess.PIPE,
                text=True,
            )
            seen = asyncio.run(_watch(hub.port, token, take(), kind, number))
            told, _ = attack.communicate(timeout=60)
            rows += _rows(f"{kind}, from {addresses} addresses", seen, Counter(json.loads(told)), quiet)
            logged, audited = (after - one for after, one in zip(_count_logs(folder), before, strict=True))
            rows.append(("  entries: the hub's log, audit log", f"{logged}, {audited}", "bounded", ""))
        rows.append(("memory of the hub", f"{rss_mib(hub.process.pid):.0f} MiB", "", ""))
        text = (folder / "hub.log").read_text() + _audit_text(folder)
        rows.append(("guessed passwords in the logs", str(sum(map(text.count, (_WRONG, _PASSWORD)))), "0", ""))
    cores = len(os.sched_getaffinity(0))
    print_table(
        f"{RATE:,} wrong logins a second for {SECONDS:.0f} s; {cores} cores for hub, attackers, slapd and users",
        f"the same hub in quiet; load of the machine before: {load:.1f}",
        rows,
    )


@contextlib.contextmanager
def _running_hub(folder: Path) -> Iterator[HubUnderTest]:
    from fakes.hostile_provider import CLIENT, SECRET, hostile_provider  # type: ignore[import-not-found]  # noqa: PLC0415
    from fakes.slapd import GROUPS, PEOPLE, SERVICE, group, person, running_slapd  # type: ignore[import-not-found]  # noqa: PLC0415

    users = [f"lin{number}" for number in range(200)]
    entries = "".join(map(person, users)) + group("staff", *users)
    (folder / "client.secret").write_text(SECRET)
    (folder / "password").write_text(_PASSWORD)
    with running_slapd(folder / "slapd", entries) as slapd, hostile_provider() as provider:
        config = (
            "demo: never\nlocal: never\nread: login\npublic_url: http://127.0.0.1:8042\n"
            f"login:\n  oidc:\n    - {{name: sso, issuer: '{provider.issuer}', client_id: {CLIENT}, "
            f"client_secret_file: {folder}/client.secret}}\n"
            f"  ldap: {{urls: ['{slapd.url}'], base: '{PEOPLE}', group_base: '{GROUPS}', bind_dn: '{SERVICE}', "
            f"bind_password_file: {slapd.password_file}, ca_file: {slapd.authority.ca_file}}}\n"
        )
        with HubUnderTest(folder, config) as hub:
            for number in range(20):
                command = ["account", "add", f"ada{number}", "--password-file", "password", "--role", "admin"]
                environment = os.environ | {"GPUDECK_DATA_DIR": str(folder), "PYTHONPATH": str(Path.cwd())}
                subprocess.run(
                    [sys.executable, "-m", "gpudeck", *command],
                    cwd=folder,
                    env=environment,
                    check=True,
                    capture_output=True,
                )
            yield hub


async def _watch(port: int, token: str, bodies: list[list[bytes]], kind: str, number: int) -> Seen:
    seen = Seen()
    agents = [push(port, token, one, [round_[one] for round_ in bodies], seen.honest) for one in range(AGENTS)]
    users = [_log_in(port, "lin" if kind == "ldap" else "ada", number, one, seen) for one in range(5)]
    await asyncio.gather(*agents, *users, _ask_health(port, seen))
    return seen


async def _ask_health(port: int, seen: Seen) -> None:
    until, client = time.perf_counter() + SECONDS, Client(port, "127.2.9.1", seen.honest)
    while (began := time.perf_counter()) < until:
        await client.ask(b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", b"200")
        seen.health.append(time.perf_counter() - began)
        await asyncio.sleep(max(0.0, 0.1 - seen.health[-1]))
    client.close()


async def _log_in(port: int, prefix: str, phase: int, number: int, seen: Seen) -> None:
    """A user begins some seconds into the flood, and tries until they are in."""
    await asyncio.sleep(2 + number)
    name = f"{prefix}{phase * 5 % 15 + number if prefix == 'ada' else phase * 10 + number}"
    began, tries = time.perf_counter(), 0
    while time.perf_counter() - began < 2 * SECONDS:
        tries += 1
        status, head = await _ask(port, f"127.4.{phase}.{1 + number}", _login(name, _PASSWORD))
        if status == 200:
            seen.logins.append(time.perf_counter() - began)
            seen.tries.append(tries)
            return
        await asyncio.sleep(float(head.lower().partition(b"retry-after: ")[2].partition(b"\r\n")[0] or b"1"))
    seen.locked_out += 1


async def _ask(port: int, source: str, sent: bytes) -> tuple[int, bytes]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(source, 0))
    with contextlib.closing(writer):
        writer.write(sent)
        head = await reader.readuntil(b"\r\n\r\n")
        return int(head[9:12]), head


def _login(name: str, password: str) -> bytes:
    body = json.dumps({"name": name, "password": password}).encode()
    head = "POST /api/v1/login HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


def _timing_rows(port: int) -> list[Row]:
    """How long a refusal takes for names that exist and that do not, each at an address of its own."""
    rows: list[Row] = []
    names = {"unknown": "nobody{}", "with a password of the hub": "ada{}", "in the directory": "lin{}"}
    found: dict[str, list[float]] = {one: [] for one in names}
    for number in range(TIMED):
        for kind, (one, name) in enumerate(names.items()):
            began = time.perf_counter()
            asked = _login(name.format(number % 20), _WRONG)
            status, _ = asyncio.run(_ask(port, f"127.5.{kind}.{1 + number}", asked))
            assert status == 401, status
            found[one].append(time.perf_counter() - began)
    for one, seconds in found.items():
        middle, base = statistics.median(seconds), statistics.median(found["unknown"])
        spread = f"{percentile(seconds, 10):.3f} to {percentile(seconds, 90):.3f} s"
        rows.append(
            (
                f"refusal of a name {one}: p50, p10 to p90",
                f"{middle:.3f}, {spread}",
                "the same",
                f"{middle / base:.2f} ×",
            )
        )
    return rows


def _rows(title: str, seen: Seen, attack: Counter[str], quiet: Seen | None) -> list[Row]:
    rows: list[Row] = [(title, "", "", "")]
    if attack:
        answers = ", ".join(f"{count} × {status}" for status, count in sorted(attack.items()) if status != "sent")
        rows.append(("  logins sent a second; answers", f"{attack['sent'] / SECONDS:.0f}; {answers}", "1,000", ""))
    for word, found, base in (
        ("/healthz", seen.health, quiet and quiet.health),
        ("a report", seen.honest.reports, quiet and quiet.honest.reports),
    ):
        for percent in (50, 99):
            value = percentile(found, percent)
            ratio = f"{value / percentile(base, percent):.1f} ×" if base else ""
            rows.append((f"  {word}, p{percent}", f"{value * 1e3:.0f} ms", "", ratio))
    in_time = ", ".join(f"{one:.1f}" for one in sorted(seen.logins))
    rows.append(("  users who logged in, after s", f"{len(seen.logins)} of 5, {in_time}", "5", ""))
    rows.append(("  tries that they needed", ", ".join(map(str, sorted(seen.tries))), "", ""))
    rows.append(("  other honest errors", str(seen.honest.errors.total()), "0", ""))
    return rows


def _count_logs(folder: Path) -> tuple[int, int]:
    lines = (folder / "hub.log").read_text().count("\n")
    return lines, _audit_text(folder).count("\n")


def _audit_text(folder: Path) -> str:
    with contextlib.closing(sqlite3.connect(f"file:{folder}/gpudeck.db?mode=ro", uri=True)) as file:
        return "".join(f"{row}\n" for row in file.execute("SELECT * FROM audit"))


async def attack(port: int, kind: str, addresses: int, phase: int) -> Counter[str]:
    """Each connection sends a login in its turn; one that is still waiting for an answer then sends none."""
    told: Counter[str] = Counter()
    began = time.monotonic()
    period = CONNECTIONS / RATE

    async def one(number: int) -> None:
        at = number % addresses
        source = f"127.{100 + phase}.{at // 250}.{1 + at % 250}"
        turn = began + 1 + number / RATE
        streams = None
        while turn < began + SECONDS:
            await asyncio.sleep(max(0.0, turn - time.monotonic()))
            try:
                if streams is None:
                    streams = await asyncio.open_connection("127.0.0.1", port, local_addr=(source, 0))
                streams[1].write(_guess(kind, number))
                told["sent"] += 1
                head = await streams[0].readuntil(b"\r\n\r\n")
                await streams[0].readexactly(
                    int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0] or 0)
                )
                told[head[9:12].decode()] += 1
            except (OSError, asyncio.IncompleteReadError):
                told["cut off"] += 1
                streams = None
            turn = max(turn + period, time.monotonic())

    await asyncio.gather(*map(one, range(CONNECTIONS)))
    return told


def _guess(kind: str, number: int) -> bytes:
    if kind in {"oidc", "callback"}:
        path = "/callback?state=x&code=y" if kind == "callback" else "?next=%23%2Fevents"
        return f"GET /api/v1/login/oidc/sso{path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode()
    known = f"ada{number % 20}" if kind == "local" else f"lin{number % 200}"
    return _login(random.choice((known, f"guess{random.randrange(10**6)}")), f"{_WRONG}-{number}")


if __name__ == "__main__":
    print(json.dumps(asyncio.run(attack(int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])))))
