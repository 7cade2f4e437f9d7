"""Estimates of time: ``batch_time`` per (model, lane, phase), with ``window``, ``inputs``, ``work_time``, ``split``
and ``distribution`` behind it; ``lane_gaps`` between batches; and ``path_cost`` of whole apps."""
