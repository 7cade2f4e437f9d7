"""A lane's thread (``lane_thread``), pinned to cores (``pin``), and engines in a process of their own (``process``)."""
