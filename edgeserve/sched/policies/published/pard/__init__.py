"""PARD as published, and ``pard+`` for many lanes; on one device ``pard_local`` is the policy to take."""
