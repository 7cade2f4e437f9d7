"""Prometheus metrics of a runtime: made of ``stats()`` at each scrape, so that serving pays nothing for them."""
