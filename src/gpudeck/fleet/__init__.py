"""The live fleet: a report comes in (ingest), changes the state of its host (state, host, gpu) and the columns (table),
and goes out as a delta (stream)."""
