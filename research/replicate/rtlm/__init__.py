"""RT-LM's experiments in virtual time."""
