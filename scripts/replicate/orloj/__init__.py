"""Orloj's experiments."""
