"""The rules: pure functions over a host and what stands around it. `registry` lists them."""
