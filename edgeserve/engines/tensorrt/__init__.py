"""The ``tensorrt`` engine: an ONNX file built into a TensorRT plan, one optimisation profile per batch size.

``settings`` reads the options. ``library`` finds TensorRT (8.5 to 11) or TensorRT-RTX; ``versions`` is the table of
what differs between them. A plan is made by ``building`` (the parent's side), ``build_process`` (the process that
builds), ``construct`` (parse, configure, build), ``half`` (casts to float16) and ``shapes`` (optimisation profiles),
kept by ``plans`` and found or built by ``plan_source``. ``tensorrt_engine`` loads and unloads it; ``io_tensors`` knows
its inputs and outputs; ``running`` is one lane's launches, ``profile_context`` a context with its CUDA graphs and the
memory of a batch, ``runtime_cache`` kernels that TensorRT-RTX compiles at load. ``diagnose`` tells ``edgeserve
doctor`` what is here. Every CUDA call goes through :mod:`edgeserve.engines.cuda`.
"""

from __future__ import annotations
