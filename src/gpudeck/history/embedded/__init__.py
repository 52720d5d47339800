"""The built-in store: one SQLite file.

store       what the hub uses; view: the file and the open hours at one moment
writer      samples → journal → open hours (open_hour) → sealed hours (seal), in one thread
keys        the numbers of hosts, GPUs, runs and words
tables      the schema, row checksums, and how the file is opened
retention   deletes old data; check, repair, export: commands for the file
"""
