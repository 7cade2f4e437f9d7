"""The simulated world: the scheduler that serves, in virtual time, under drawn load and drawn trouble.

``scenario`` reads, ``workload``, ``device`` and ``faults`` draw, ``world`` plays, ``reference_model`` keeps its
own account of what must hold, ``report`` says what was achieved, ``soak`` does it a thousand times. Imports no engine
and no socket.
"""
