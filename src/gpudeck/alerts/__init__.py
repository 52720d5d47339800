"""What is wrong in the fleet, for how long, and who is told: rules, the life of an alert, and the ways to people."""
