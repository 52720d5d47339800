"""The hub's own tables: accounts, sessions, tokens, audit, events. SQLite, or PostgreSQL for several hubs."""
