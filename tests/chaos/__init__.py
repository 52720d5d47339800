"""What a hub keeps, tells and loses when things fail around it, measured with exact ground truth.

`make chaos` runs everything and prints a table; `tests/chaos/test_chaos_short.py` runs a short form of it. Each
scenario starts real hubs, reports to them with hosts that know precisely what they reported, breaks something, and
compares what the hub has with what it was told. Everything is on loopback, below a temporary folder, and bounded in
time.
"""
