"""Several hubs that serve one fleet: a bus that carries every report to all of them, and duties with leases."""
