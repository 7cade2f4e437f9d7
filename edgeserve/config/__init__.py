"""The configuration: typed tables (``schema``), hints (``hints``), what went (``gone``), profile files."""
