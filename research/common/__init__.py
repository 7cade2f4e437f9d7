"""Worlds, loads and baselines that several studies share."""
