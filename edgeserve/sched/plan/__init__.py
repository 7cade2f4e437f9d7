"""One plan per lane for every kind of work: sources make candidates, one rule chooses."""
