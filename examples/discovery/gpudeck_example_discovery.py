"""A discovery provider: hosts from the CSV file of an inventory, with the columns `name` and `rack`.

discovery:
  plugins: [{plugin: inventory, options: {file: /etc/inventory.csv, via: pull}}]
"""

import asyncio
import csv
from collections.abc import Mapping
from pathlib import Path

from gpudeck.discovery.inputs import HostFindings
from gpudeck.model.errors import Temporary, UsageError
from gpudeck.model.target import Target


class Inventory:
    pause = 30.0

    def __init__(self, options: Mapping[str, str]) -> None:
        unknown = set(options) - {"file", "via", "path"}
        if unknown or "file" not in options:
            raise UsageError("the options are `file`, `via` and `path`, and `file` is needed.")
        self._file = Path(options["file"])
        self._via, self._path = options.get("via", "ssh"), options.get("path")
        self.origin = self._file.name
        self.problems: list[str] = []

    async def find(self) -> list[Target]:
        return await asyncio.to_thread(self._read)

    async def close(self) -> None:
        return

    def _read(self) -> list[Target]:
        found = HostFindings()
        try:
            with self._file.open(newline="") as opened:
                for line, row in enumerate(csv.DictReader(opened), start=2):
                    if not row.get("name"):
                        found.add_problem(f"{self.origin}, line {line}: it has no name.")
                        continue
                    labels = {"rack": row["rack"]} if row.get("rack") else {}
                    target = Target(name=row["name"], via=self._via, path=self._path, labels=labels, origin=self.origin)
                    found.add([target], self.origin)
        except (OSError, csv.Error) as error:
            # Never a part of the list: hosts that are missing in it would be forgotten.
            raise Temporary(f"{self._file} cannot be read: {error}.") from error
        self.problems = found.problems
        return found.targets


make = Inventory
