"""PARD, as published and at its best (``policy``), and what only the two use."""
