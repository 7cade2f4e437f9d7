"""The live world: what the scheduler decides becomes real on lanes, sockets and a monotonic clock.

``core`` puts a running runtime together, ``startup`` loads and warms models, ``world`` performs actions and gathers
events, ``payloads`` keeps the tensors, ``frontdoor`` stands between bus and world. Nothing in here decides.
"""
