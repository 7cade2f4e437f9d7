"""Speech to text: ``whisper`` is the engine, ``mel`` what a network hears of a sound, ``heard`` what it said of
a window."""
