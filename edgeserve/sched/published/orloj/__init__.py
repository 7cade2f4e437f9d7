"""Orloj as published ("Orloj: Predictably Serving Unpredictable DNNs")."""
