"""`gpudeck top`: the live fleet in a terminal.

feed (a hub's stream, or this machine) → fleet → rows → picture → canvas. Everything before the canvas is plain Python
that knows no terminal; app alone knows Textual, and is imported when the first picture is to be drawn.
"""
