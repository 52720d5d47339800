"""How long anything may keep others from their turn: a hub has one event loop, and Python one thread at work."""

HOSTS_AT_ONCE = 16
"""Whatever looks at all hosts lets others have a turn after so many of them."""
THREAD_SECONDS = 0.0005
"""After which Python takes the turn from a thread while the event loop waits for it. Its own 5 ms would pass at each
turn of the loop while a thread seals an hour or answers a question about the past."""
