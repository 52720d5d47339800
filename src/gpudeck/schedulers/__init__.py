"""Which GPUs a scheduler has given to jobs, whether anything runs on them or not."""
