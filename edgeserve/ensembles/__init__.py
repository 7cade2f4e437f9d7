"""Ensembles of models: what a history of outputs says of difficulty and agreement, and how outputs become an answer.

Plain numpy. ``edgeserve fit`` uses this room to make an ensemble's file, the ``combine`` engine to answer with it; the
policies of ensembles (``sched/policies/ensemble``) plan with the file's profile.
"""
