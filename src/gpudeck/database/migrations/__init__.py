"""How the tables became what they are: one module a step in `versions`, never changed once released."""
