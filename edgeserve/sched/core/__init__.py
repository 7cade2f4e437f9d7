"""The scheduler itself: ``scheduler`` (``step``), the lives of requests, probes, invariants, and how it is built."""
