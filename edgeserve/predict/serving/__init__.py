"""Predictions while a server runs: hints of requests as they arrive (``answer_lengths.py``, ``predictors.py``), and the
record of what an ensemble's models say (``history_recorder.py``).

``live/plug_ins.py`` loads them by name where an app asks for them; nothing of the live world imports them.
"""
