"""The experiments of published papers, again."""
