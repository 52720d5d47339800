"""The demo: a past for the simulated fleet."""
