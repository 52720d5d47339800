"""A store that the site runs: anything that takes remote_write and answers PromQL."""
