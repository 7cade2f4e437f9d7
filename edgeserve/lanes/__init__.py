"""Lanes: the threads that run works (``thread``)."""
