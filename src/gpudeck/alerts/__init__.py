"""Alerts: rules, states, grouped messages, and the channels that send them."""
