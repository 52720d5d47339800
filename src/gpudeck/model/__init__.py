"""The nouns of gpudeck: what a report, a host, a GPU and a process are, and what free or healthy means.

Everything here is pure: no socket, no file, no hardware. Every other room builds on these names.
"""
