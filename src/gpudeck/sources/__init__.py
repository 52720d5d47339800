"""The hub's side of each way in: pull, ssh, scrape. Push needs none: it comes in through the API."""
