"""Predictions: the length of an answer from its text, an ensemble's accuracy from a history of outputs, and an answer
from the outputs of some of its models.

Plain numpy, no engine and no scheduler. Predictors (``[app.NAME.predict]``), the ``combine`` engine and ``edgeserve
fit`` use this room; the policies of ``sched/policies/schemble`` plan with an ensemble's profile.
"""
