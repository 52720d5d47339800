"""Stand-ins for the edges only: a clock that a test sets, reports as an agent would send them."""
