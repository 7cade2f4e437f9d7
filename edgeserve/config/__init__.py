"""The configuration: typed tables (``schema``), hints of requests (``hints``), pipelines as JSON and profile files."""
