"""A store that the site runs: anything that takes remote_write and answers PromQL.

store       what the hub uses; usage and runs stay in an embedded store beside it
writer      samples → encoder and counters → queue on the disk → store, in two threads
client      HTTP to the store; promql: names of series, and questions
answers     the questions of `history.base`, answered
"""
