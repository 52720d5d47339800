"""Maintenance windows of hosts and GPUs."""
