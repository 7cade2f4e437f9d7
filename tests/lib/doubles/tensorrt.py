"""``import tensorrt`` with this folder on the path: the double, of the version in ``TRT_DOUBLE_VERSION``."""

import os

import trt_double

globals().update(trt_double.library(os.environ.get("TRT_DOUBLE_VERSION", "10.3")))
