"""Prometheus metrics of a runtime: made of ``stats()`` when somebody asks, so that serving pays nothing for them."""
