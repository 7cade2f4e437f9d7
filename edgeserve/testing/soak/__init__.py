"""Soak: seeded simulations of drawn apps, policies, load and faults, each held to every rule.

``run`` draws and runs a seed, ``accounts`` counts where each request went; ``ensembles``, ``language`` and ``pard``
draw what only these policies and models have.
"""
