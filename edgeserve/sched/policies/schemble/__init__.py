"""Ensembles: which models of an ensemble run for which request (Schemble), and the policies it is compared with."""
