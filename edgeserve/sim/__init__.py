"""See the module list in docs/architecture.md."""
