"""Who waits for GPUs, in which order they get them, and what is claimed for whom."""
