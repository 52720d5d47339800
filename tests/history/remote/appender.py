"""A process that appends records for ever, and says each number once it is in the queue: to be killed."""

import itertools
import sys
from pathlib import Path

from gpudeck.history.remote.encoder import EncodedSeries
from gpudeck.history.remote.writer import DiskQueue

queue = DiskQueue(Path(sys.argv[1]), 10**9)
for number in itertools.count(len(queue.peek(10**9))):
    queue.append([EncodedSeries(bytes(1000), 1, float(number))])
    print(number, flush=True)
