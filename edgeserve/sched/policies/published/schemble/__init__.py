"""Schemble as published, and the baselines that it is compared with."""
