"""PARD on one shared device (``policy``): requests travel in cohorts."""
