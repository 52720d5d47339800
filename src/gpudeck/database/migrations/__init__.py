"""How the tables became what they are: one module a step in `versions`, never changed once released.

A new step is a change of `schema.py`, a module with the next number that does the same to tables that are there, and
that number as `NEWEST` in `migrating.py`. On SQLite columns and constraints change in `op.batch_alter_table`. There is
no way back: an older gpudeck refuses the database, and needs the backup from before.
"""
