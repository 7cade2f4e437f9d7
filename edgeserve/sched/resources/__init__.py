"""Lanes and memory: works on lanes, which models stay in memory, loads and evictions, streams."""
