"""The hub over HTTP: one file a resource, one error shape, and the built page."""
