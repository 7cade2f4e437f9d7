"""Taps: what watches a runtime and decides nothing.

``metrics_endpoint`` and ``metric_families`` turn ``stats()`` into the metrics of Prometheus. ``spans`` and
``span_export`` are for OpenTelemetry. ``trace`` and ``last_steps`` record a run; ``replay`` and ``timeline`` read it.
"""
