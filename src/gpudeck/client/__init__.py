"""A typed client of the hub's API, small enough for the command line."""

from gpudeck.client.client import Client, Forbidden, NotLoggedIn, ReservationTaken

__all__ = ["Client", "Forbidden", "NotLoggedIn", "ReservationTaken"]
