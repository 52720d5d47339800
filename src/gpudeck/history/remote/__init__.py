"""The past in a store that the site runs: anything that takes remote_write and answers PromQL.

store       all of it as a `base.Store`; usage_store: what the hub keeps itself
names       what the series are called
writer      samples → scribe (their series), counters (who used what) → queue on the disk, in a thread
protobuf, records   series as the bytes of remote_write, and as records of the queue
write       the sender: queue → store, in a thread
door        HTTP to the store, with its credentials
promql, read        questions in the store's language, and what it answers
devices      hosts and GPUs by their names
answers, people     the questions of `base`, answered
"""
