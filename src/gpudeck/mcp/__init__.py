"""Answers for language models over the Model Context Protocol: `gpudeck mcp` on a user's machine, `/mcp` of the hub.

`tools` has the questions, `server` the protocol. Both places ask the hub's own routes, so that access, limits and the
audit log are those of HTTP.
"""
