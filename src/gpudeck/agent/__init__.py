"""On each server: a beat collects a report, the outbox keeps it, the sender pushes it to the hub."""
