"""The fleet as it was before its numbers became columns, one value at a time: what the table is held to."""
