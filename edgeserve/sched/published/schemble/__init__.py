"""Schemble as published (Li et al., ICDE 2023)."""
