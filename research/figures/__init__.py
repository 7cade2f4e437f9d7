"""Scripts that draw figures and tables of the research pages."""
