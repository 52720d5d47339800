"""The hub's own tables: accounts, sessions, tokens, what was done. SQLite, or PostgreSQL for several hubs."""
