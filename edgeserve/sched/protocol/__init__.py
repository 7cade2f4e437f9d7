"""What goes into the scheduler (``events``) and what comes out (``actions``)."""
