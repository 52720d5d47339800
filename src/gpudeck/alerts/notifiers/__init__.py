"""The ways of a message to people: which ones (routes), in which words (letter, escape), kept until it is there
(outbox), and sent by a process of its own for each channel (courier, serve)."""
