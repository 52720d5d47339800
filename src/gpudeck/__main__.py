"""`python -m gpudeck`."""

from gpudeck.cli import main

main()
