"""Long lists of hosts are read in a process of their own.

One call that decodes 64 MiB of JSON or 4 MiB of YAML holds Python's lock for seconds, whichever thread it runs in, and
needs gigabytes of memory if it was made to. The process is started for one list and ends with it.
"""

import importlib
import resource
import subprocess
import sys
from collections.abc import Callable
from typing import Final

import msgspec
from msgspec import Struct

from gpudeck.discovery.base import Findings
from gpudeck.model.errors import Temporary
from gpudeck.model.target import Target

LONG_BYTES: Final = 256 * 1024
"""Lists of up to this size are read in place: 1,500 hosts of http_sd, or 100 of Consul."""
SECONDS: Final = 50.0
_MEMORY_BYTES: Final = 2 * 2**30


class _Question(Struct, array_like=True):
    function: str
    arguments: list[str]
    body: bytes


class _Outcome(Struct, array_like=True):
    """`targets` are encoded by the thousand, as one call for all of them would take long. `refusal` is a Temporary's
    message and hint."""

    targets: list[bytes]
    problems: list[str]
    refusal: tuple[str, str] | None = None


_decode_targets = msgspec.msgpack.Decoder(list[Target]).decode


def read_list(read: Callable[..., Findings], body: bytes, *args: str) -> Findings:
    """What `read(body, *args)` returns. `read` is a function of a module.

    Blocks: call it in a thread. Raises Temporary, also where `read` takes too long or needs too much memory.
    """
    if len(body) <= LONG_BYTES:
        return read(body, *args)
    question = _Question(f"{read.__module__}:{read.__qualname__}", list(args), body)
    try:
        child = subprocess.run(
            [sys.executable, "-P", "-m", "gpudeck.discovery.long_lists"],
            input=msgspec.msgpack.encode(question),
            stdout=subprocess.PIPE,
            timeout=SECONDS,
            check=True,
            start_new_session=True,
        )
        outcome = msgspec.msgpack.decode(child.stdout, type=_Outcome)
    except (subprocess.SubprocessError, OSError, msgspec.DecodeError) as error:
        size = f"{len(body) / 2**20:.1f} MiB"
        raise Temporary(f"the list of {size} could not be read within {SECONDS:g} s and 2 GiB of memory.") from error
    if outcome.refusal is not None:
        raise Temporary(*outcome.refusal)
    findings = Findings()
    findings.targets = [target for encoded in outcome.targets for target in _decode_targets(encoded)]
    findings.problems = outcome.problems
    return findings


def main() -> None:
    """The process's side: one question on standard input, its outcome on standard output."""
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    question = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=_Question)
    module, _, name = question.function.partition(":")
    read: Callable[..., Findings] = getattr(importlib.import_module(module), name)
    try:
        findings = read(question.body, *question.arguments)
        targets = findings.targets
        encoded = [msgspec.msgpack.encode(targets[at : at + 1000]) for at in range(0, len(targets), 1000)]
        outcome = _Outcome(encoded, findings.problems)
    except Temporary as error:
        outcome = _Outcome([], [], (error.message, error.hint))
    except MemoryError:
        sys.exit(1)
    sys.stdout.buffer.write(msgspec.msgpack.encode(outcome))


if __name__ == "__main__":
    main()
