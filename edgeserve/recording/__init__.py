"""Recorded runs: writing and reading (``trace``), replaying (``replay``), timelines for Perfetto (``timeline``)."""
