"""Which hosts there are: the configured ones, those of files, of Prometheus lists, of Consul."""
