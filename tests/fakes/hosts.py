"""Values of the header Host, for the tests of the hub's server and the agent's."""

GOOD_HOSTS = [b"x", b"hub.example:8042", b"my_hub", b"127.0.0.1:8042", b"[::1]:8042", b"hub:"]
BAD_HOSTS = [b"", b" a b", b" a/b", b" a@b", b" a:b", b" a,b c", b" <script>", b" [::1", b" h\xc3\xbcb", b' "a"']
