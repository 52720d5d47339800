"""The fleet as text: the same for curl and for the command line."""
