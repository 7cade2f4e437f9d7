"""Taps: what watches a runtime and decides nothing.

``metrics_endpoint`` and ``metric_families`` serve Prometheus, from ``stats()`` at each scrape. ``spans`` and
``span_export`` are for OpenTelemetry. ``trace`` and ``last_steps`` record a run; ``replay`` and ``timeline`` read it.
"""
