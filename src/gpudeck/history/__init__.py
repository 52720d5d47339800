"""History: samples of the live fleet are kept, rolled up and queried.

    sample          what the hub hands over: a host at one moment, as plain tuples
    hour            a host's hour as numpy arrays, and as bytes (codec)
    rollup, totals  an hour → quarter hours of each GPU → totals of host and fleet
    accounting      an hour → usage of each user, and each run's part
    base            questions, answers, and the interface of a store
    metrics, time_range, aggregation, answers, usage    how questions are answered
    embedded/       the built-in store: one SQLite file
    remote/         any Prometheus-compatible store

Importing this package imports neither numpy nor a store: a base install reads settings and usage.
"""

import os

# Tables of a host's hour are far too small to be multiplied by several threads, which numpy's library would start on
# every core and let spin for a while after each. It reads this when numpy is imported; who sets it otherwise is heard.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
