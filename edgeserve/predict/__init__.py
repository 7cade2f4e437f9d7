"""What a text says of the length of its answer; what a history of outputs says of an ensemble, and how outputs of some
of its models become an answer.

Plain numpy, no engine and no scheduler. Predictors (``[app.NAME.predict]``), the ``combine`` engine and ``edgeserve
fit`` use this room; the policies of ``sched/policies/schemble`` plan with an ensemble's profile.
"""
