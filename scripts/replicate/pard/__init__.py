"""PARD's experiments."""
