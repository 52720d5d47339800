"""A socket to listen on, for the hub and for agents that are asked."""

import os
import socket

from gpudeck.model.errors import UsageError
from gpudeck.model.settings import Address


def open_socket(address: Address) -> socket.socket:
    """A bound socket that listens. Raises UsageError when the address is taken or is not of this machine."""
    try:
        if address.host in {"", "::"} and socket.has_dualstack_ipv6():
            return socket.create_server(("::", address.port), family=socket.AF_INET6, dualstack_ipv6=True)
        family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
        return socket.create_server((address.host, address.port), family=family)
    except OSError as error:
        # What create_server raises has the address in its text a second time.
        known = error.errno is not None and error.errno > 0
        reason = (os.strerror(error.errno or 0) if known else error.strerror or str(error)).lower()
        raise UsageError(
            f"cannot listen on {address}: {reason}.", "Stop what uses it, or choose another with --listen HOST:PORT."
        ) from error
