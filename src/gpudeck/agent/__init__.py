"""On each server: the report loop collects a report, the outbox keeps it, the sender pushes it to the hub."""
