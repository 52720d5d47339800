"""Compatibility with five older monitors: their clients, nodes and files keep working. No other package knows their
names."""
