"""The built-in store: one SQLite file."""
