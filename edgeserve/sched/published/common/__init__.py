"""What several of these policies share and nothing else needs."""
