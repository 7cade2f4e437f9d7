"""Orloj as published ("Predictably Serving Unpredictable DNNs")."""
