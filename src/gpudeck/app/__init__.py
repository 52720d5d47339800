"""Wiring: the only room that knows all the others. `hub` starts a hub, `agent` an agent; each imports only its side."""
