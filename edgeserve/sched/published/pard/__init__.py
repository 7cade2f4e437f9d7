"""PARD as published (Zhao et al., EuroSys 2026), and ``pard+`` for many lanes; on one device take ``plan``."""
