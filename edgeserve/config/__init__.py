"""The configuration: typed tables (``schema``), hints of requests (``hints``), what went (``gone``) and profile files."""
