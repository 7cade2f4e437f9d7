"""The simulated world: the scheduler that serves, in virtual time, under drawn load and faults.

``scenario`` reads, ``workload``, ``truth`` and ``faults`` draw, ``host`` charges the machine's costs, ``world`` plays,
``reference_model`` keeps its own account of what must hold, ``report`` says what was achieved. Imports no engine and no
socket.
"""
