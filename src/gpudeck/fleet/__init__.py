"""The numbers of all GPUs and hosts as columns, and how they are judged. The hosts that own the rows are in hub."""
