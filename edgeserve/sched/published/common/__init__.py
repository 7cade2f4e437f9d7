"""Common pieces of several of these policies."""
