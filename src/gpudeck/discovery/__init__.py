"""Host discovery: the configuration, host files, Prometheus lists, Consul."""
