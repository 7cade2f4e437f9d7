"""Clockwork as published ("Serving DNNs like Clockwork: Performance Predictability from the Bottom Up", OSDI 2020)."""
