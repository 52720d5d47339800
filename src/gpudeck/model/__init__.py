"""The nouns of gpudeck: what a report, a host, a GPU and a process are, and what free or healthy means.

Everything here is pure: no socket, no file, no hardware. Every other package builds on these names.
"""
