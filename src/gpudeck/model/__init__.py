"""The data types of gpudeck: reports, hosts, GPUs and processes, and the rules for free and healthy.

Everything here is pure: no socket, no file, no hardware. Every other package builds on these names.
"""
