"""Orloj, as published (``published``) and at its best (``plus``), and what only the two use."""
