"""The live fleet: a report comes in (ingest), changes the fleet's state (fleet), and goes out as a delta (stream)."""
