"""The code that the live world and the simulated one share beside the scheduler: the loop (``drive``), the joint
reading of messages (``coalescing``), the time of an answer beside its lane (``response_overhead``)."""
