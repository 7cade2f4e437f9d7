"""CUDA for engines: devices, streams, events, memory and graphs, over NVIDIA's binding of the driver.

``device`` has what engines use: :class:`~edgeserve.engines.cuda.device.CudaDevice` and what it makes. ``driver`` makes
the driver's calls. ``status`` turns CUDA's status codes into EdgeServe's errors. ``staging`` holds tensors that go to
the device and come back. ``completion`` tells when a batch is over and when the device ran it. ``lane_stream`` keeps
the one stream that the sessions of a lane share, and the two beside it for copies.

CUDA objects belong to a context. Everything here uses the device's primary context, the one that torch and ONNX Runtime
use too, so that pointers and streams mean the same to all of them.
"""
