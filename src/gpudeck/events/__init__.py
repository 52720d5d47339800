"""What happened: kept in the hub's database, and handed to whoever watches."""
