"""The bus: ``wire`` and ``tensors`` (frames, pure), ``bus`` (the server's side), ``link`` (a client's), ``endpoints``.

``docs/protocol.md`` is the specification.
"""
