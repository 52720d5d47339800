"""The store that comes with gpudeck: one SQLite file, nothing to install.

store     what the hub holds on to: a writer thread, and answers for whoever asks
writer    batches of samples → journal → open hours → sealed hours, in one thread
intake    samples by the file's numbers; batch: as arrays
journal   batches as bytes, until their hours are sealed
tail      a host's hour while it is still being written; pieces: its parts as one hour
seal      an hour's way into the tables, and what it added taken out again when late samples open it
keys      the small numbers of hosts, GPUs, runs and words
reader    opens the file for questions; view: the tables and the open hours as `history.past.Past`
upkeep    what is too old or too much goes
tables    the schema, its versions, and how the file is opened
"""
