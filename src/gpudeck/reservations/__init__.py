"""Reservations of GPUs: conflicts, and comparison with observed use."""
