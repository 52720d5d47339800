"""Read this machine: the first room on a report's way.

A collector is one module; `machine` puts what they read together.
"""
