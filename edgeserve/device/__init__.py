"""The device: what it is, how hot and how fast it is. One module per kind of source."""
