"""What a policy is written against: the hooks and the bid (``policy``), the ``board``, and the ``arbiter``."""
