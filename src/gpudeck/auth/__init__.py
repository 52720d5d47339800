"""Who calls, and what they may do: accounts, sessions, tokens, roles."""
