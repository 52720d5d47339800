"""What happened before: samples of the live fleet are kept, summed up and asked about.

    sample      what the hub hands over: a host at one moment, as plain tuples
    hour        a host's hour as numpy arrays: the noun of this room
    codec, chunk    an hour as bytes and back
    rollup      an hour → quarter hours a GPU, the host's and the fleet's share
    accounting  an hour → who used what, and each run's part
    base        the questions, the answers, and what a store is
    embedded/   the store that comes with gpudeck: one SQLite file
    remote/     any Prometheus-compatible store

Importing this package imports neither numpy nor a store: settings and samples are read by those who do without.
"""

import os

# Tables of a host's hour are far too small to be multiplied by several threads, which numpy's library would start on
# every core and let spin for a while after each. It reads this when numpy is imported; who sets it otherwise is heard.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
