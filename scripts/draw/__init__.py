"""Scripts that draw parts of pages and pictures."""
