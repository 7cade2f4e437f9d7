"""Predictions: the length of an answer from its text, an ensemble's accuracy from a history of outputs, and an answer
from the outputs of some of its models.

Plain numpy, no engine and no scheduler. Predictors (``[app.NAME.predict]``), the ``combine`` engine and ``edgeserve
profile --fit`` use this room; ``sched/plan`` and ``sched/published/schemble`` plan with an ensemble's profile.
"""
