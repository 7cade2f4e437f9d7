"""The random choice of items: a function of their numbers, so that it gives the same result each time and
everywhere."""

from __future__ import annotations


def mixed(value: int) -> int:
    """A number of 32 bits that looks drawn (the finaliser of splitmix64)."""
    value = (value * 0x9E3779B97F4A7C15) & 0xFFFFFFFFFFFFFFFF
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & 0xFFFFFFFFFFFFFFFF
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & 0xFFFFFFFFFFFFFFFF
    return (value ^ (value >> 31)) & 0xFFFFFFFF
