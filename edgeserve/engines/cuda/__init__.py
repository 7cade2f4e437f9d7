"""CUDA for engines: devices, streams, events, memory and graphs, over one of two libraries.

``device`` has what engines use: :class:`~edgeserve.engines.cuda.device.Device` and what it makes. ``driver`` is the
protocol that a library's adapter follows and chooses one: ``by_bindings`` (NVIDIA's cuda-bindings, Python 3.10 and
later) or ``by_pycuda`` (JetPack 5). ``errors`` turns CUDA's status codes into EdgeServe's errors. ``staging`` holds
tensors that go to the device and come back. ``completion`` tells when a batch is over and when the device ran it.
``lanes`` keeps the one stream that the sessions of a lane share.

CUDA objects belong to a context. Everything here uses the device's primary context, the one that torch and ONNX Runtime
use too, so that pointers and streams mean the same to all of them.
"""
