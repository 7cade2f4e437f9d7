"""How long things take: ``model`` per (model, lane), ``distribution``, ``drift``, and ``path_cost`` of whole apps."""
