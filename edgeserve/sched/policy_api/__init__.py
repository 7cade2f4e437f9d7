"""The interface of policies: the hooks and the bid (``policy``), the ``board``, and the ``arbiter``."""
