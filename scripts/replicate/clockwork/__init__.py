"""Clockwork's experiments."""
