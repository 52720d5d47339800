"""Events of the fleet: kept in the hub's database and passed to listeners."""
