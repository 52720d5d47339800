"""A typed client of the hub's API, small enough for the command line."""

from gpudeck.client.client import Client, Forbidden, LoginPending, NotLoggedIn, ReservationTaken

__all__ = ["Client", "Forbidden", "LoginPending", "NotLoggedIn", "ReservationTaken"]
