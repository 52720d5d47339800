"""The hub's side of each source: pull, ssh, scrape. Push needs none: it comes in through the API."""
