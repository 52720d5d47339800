"""Record what the hub says of the day and of the week: `cd tests && ../.venv/bin/python -m week`.

Read the difference (`git diff tests/week/recorded`) line by line before you commit it: each changed line is something
that users are told otherwise from here on.
"""

import tempfile
from pathlib import Path

from week.answers import DAY_HOURS, FOLDER, WEEK_HOURS, collect, file_of, write
from week.hub import WeekHub, both_fleets


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    for hours in (DAY_HOURS, WEEK_HOURS):
        with tempfile.TemporaryDirectory() as folder, both_fleets():
            hub = WeekHub(Path(folder))
            hub.run(hours)
            hub.check()
            write(hours, collect(hub, hours))
            hub.close()
        print(f"{file_of(hours)}: {len(hub.new.events)} events, {hub.follower.compared:,} documents compared")


main()
