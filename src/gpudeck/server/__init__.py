"""The HTTP server of a hub: sockets, TLS, and the limits of connections and requests."""
