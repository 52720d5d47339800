"""The rules: pure functions over a host and its fleet. `registry` lists them."""
