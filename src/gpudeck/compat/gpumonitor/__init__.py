"""gpumonitor: nodes that answer `gpu_stats()` over XML-RPC. Its nodes are read, its config.yml is imported."""
