"""Authentication and authorization: accounts, sessions, tokens, roles."""
