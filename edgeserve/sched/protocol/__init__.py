"""The messages into the scheduler (``events``) and out of it (``actions``)."""
