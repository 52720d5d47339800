"""The queue for GPUs: requests, their order, and claimed GPUs."""
