"""What a text says about the length of its answer: rule scores, and the regression from scores to output tokens.

Nothing in this room imports an engine or the scheduler. Predictors (``[app.NAME.predict]``) and ``edgeserve fit`` use
this room.
"""
