"""GPU Cluster Status Monitor: nodes that are asked with a password, and a main that tells of all of them."""
