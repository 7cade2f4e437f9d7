"""Policies as papers describe them, for replication: no serving configuration needs this room."""
