"""Policies as papers describe them: loaded by name, imported by nothing in the product."""
