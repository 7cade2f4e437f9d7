"""Fronts for other systems: each a process of its own that asks a running server over its bus."""
