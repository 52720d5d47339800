"""`gpudeck top`: the live fleet in a terminal.

feed (a hub's stream, or this machine) → fleet → rows → screen → canvas. Everything before the canvas is plain Python
without a terminal; only `app` uses Textual, imported when the first screen is drawn.
"""
