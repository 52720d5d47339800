"""Notifications: which channels and people get a message (routes), its text (rendering), the outbox that keeps it until
it is delivered, and a sender process for each channel."""
