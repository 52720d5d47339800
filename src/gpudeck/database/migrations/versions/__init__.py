"""The steps, by number. `NEWEST` in `migrating.py` is the last one's."""
