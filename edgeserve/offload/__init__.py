"""CPU lanes' helpers: threads pinned to cores (``pin``), engines in a process of their own (``process``)."""
