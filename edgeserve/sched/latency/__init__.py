"""How long things take: ``model`` per (model, lane, phase), with ``distribution``, ``drift``, ``skew``, ``usual_work``,
``split`` and ``confidence`` behind it, and ``path_cost`` of whole apps."""
