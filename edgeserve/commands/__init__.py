"""The verbs of the ``edgeserve`` command, a module each: ``add_arguments(parser)`` and ``main(args)``."""
