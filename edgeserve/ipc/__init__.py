"""The bus: ``wire`` and ``tensors`` (frames, pure), ``bus`` (the server's side), ``link`` and ``courier`` (a client's),
``endpoints``; ``segments`` and ``slab``, memory that both share for large tensors.

``docs/reference/protocol.md`` is the specification.
"""
