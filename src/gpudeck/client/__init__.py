"""The public client of a hub: typed, and small enough for the command line, which uses nothing else."""

from gpudeck.client.client import Client
from gpudeck.client.errors import Forbidden, LoginPending, NotLoggedIn, ReservationTaken

__all__ = ["Client", "Forbidden", "LoginPending", "NotLoggedIn", "ReservationTaken"]
