"""``schemble+``: the models that each request of an ensemble gets, decided one job at a time."""
