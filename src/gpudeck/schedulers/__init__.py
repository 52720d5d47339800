"""Schedulers: which GPUs are allocated to which jobs."""
