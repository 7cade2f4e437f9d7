"""The scheduler: events in, actions out. Pure: no clock, no thread, no I/O. Begin with ``scheduler``.

One idea per file; ``docs/develop/architecture.md`` lists them. ``policies`` see the ``board`` and nothing behind it.
"""
