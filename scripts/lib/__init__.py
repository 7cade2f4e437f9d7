"""Modules that several scripts use."""
