"""The past in a store that the site runs: anything that takes remote_write and answers PromQL.

names       what the series are called
protobuf    series as the bytes of remote_write
scribe      a sample → its series
counters    who used what, as counters that only grow
queue       what waits on the disk to be sent
door        HTTP to the store, with its credentials
write       the sender
promql      questions in the store's language
read        answers out of it
store       all of it as a `base.Store`
"""
