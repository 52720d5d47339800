"""vesta: senders that push to it, scripts that read its states, and terminals that show its table."""
