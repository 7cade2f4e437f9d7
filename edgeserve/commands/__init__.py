"""What the verbs of the ``edgeserve`` command do, a module each: ``add_arguments(parser)`` and ``main(args)``."""
