"""Collectors read this machine: the first step of a report.

A collector is one module; `machine` puts what they read together.
"""
