"""The live world: what the scheduler decides becomes real on lanes, sockets and a monotonic clock.

``runtime_core`` puts a running runtime together, ``startup`` loads and warms models, ``world`` performs actions and
gathers events, ``loop_io`` sleeps and reads, ``request`` checks what was asked, ``values`` keeps the tensors,
``gateway`` stands between bus and world. Nothing in here decides.
"""
