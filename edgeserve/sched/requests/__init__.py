"""Requests: their states and records, the graphs of apps, joins, admission."""
