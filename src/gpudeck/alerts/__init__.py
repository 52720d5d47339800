"""What is wrong in the fleet, since when, and who is notified: rules, states, messages and their channels."""
