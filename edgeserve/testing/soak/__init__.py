"""Soak: seeded simulations of drawn apps, policies, load and faults, each held to every rule.

``run`` draws and runs a seed, ``accounts`` counts where each request went, ``recovery`` asks that every app is soon
served again; ``ensembles``, ``language`` and ``pard`` draw what only these policies and models have.
"""
