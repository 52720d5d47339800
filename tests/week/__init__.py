"""A week of a small fleet, the same each time: what the hub says of it is held to recorded answers."""
