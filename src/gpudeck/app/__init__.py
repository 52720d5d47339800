"""Composition: starts a hub from the services of all other packages."""
