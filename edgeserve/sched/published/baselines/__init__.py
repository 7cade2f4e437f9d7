"""Baselines that papers compare themselves with: Clipper, Nexus, and ensembles that choose once per request."""
