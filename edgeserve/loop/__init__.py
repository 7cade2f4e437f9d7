"""What the live world and the simulated one share beside the scheduler: the loop (``drive``), when messages are read
together (``coalescing``), what an answer takes beside its lane (``response_overhead``)."""
