"""The findings of ``edgeserve doctor`` on the library for CUDA: which one there is, pycuda beside it, and whether the
lanes' shares of the multiprocessors fit the GPU."""

from __future__ import annotations

import importlib.util
from typing import Dict, List, Optional, Tuple

from edgeserve.config.schema import Config
from edgeserve.engines.cuda.bare_library import PlainBinding
from edgeserve.engines.cuda.driver import INSTALL_MEND, Driver, binding, is_available, open_driver
from edgeserve.errors import EngineError

Found = Tuple[str, str, str, str]
"""Subject, status (``good``, ``note`` or ``wrong``), text, mend."""


def findings(config: Optional[Config]) -> List[Found]:
    """The findings here, where the configuration has a GPU, or none is given and there is one."""
    wanted = config is not None and any(device.kind == "cuda" for device in config.devices.values())
    if not (wanted or (config is None and is_available())):
        return []
    found: List[Found] = []
    try:
        driver = open_driver()
    except EngineError as error:
        return [("cuda library", "wrong", str(error), INSTALL_MEND)] if wanted else []
    is_plain = isinstance(binding(), PlainBinding)
    text = "the driver's own library is called, no binding is installed" if is_plain else "NVIDIA's binding is called"
    mend = f"{INSTALL_MEND}, for lanes with multiprocessors of their own" if is_plain else ""
    found.append(("cuda library", "note" if is_plain else "good", text, mend))
    if importlib.util.find_spec("pycuda") is not None:
        found.append(
            (
                "pycuda",
                "note",
                "pycuda is here; its arrays are taken as inputs without a copy on the host, of the primary context",
                "import pycuda.autoprimaryctx in your program, not pycuda.autoinit, which makes a context of its own",
            )
        )
    return found + (_shares(config, driver) if config is not None else [])


def _shares(config: Config, driver: Driver) -> List[Found]:
    """The devices whose lanes want more multiprocessors than there are."""
    wanted: Dict[int, int] = {}
    for lane in config.lanes.values():
        if lane.sms:
            index = config.devices[lane.device].index
            wanted[index] = wanted.get(index, 0) + lane.sms
    found: List[Found] = []
    for index, sms in sorted(wanted.items()):
        has = driver.attribute(index, "MULTIPROCESSOR_COUNT") if index < driver.device_count() else 0
        if sms > has:
            text = f"lanes of GPU {index} want {sms} multiprocessors for themselves, and it has {has}"
            found.append(("multiprocessors", "wrong", text, "lower [lane.NAME] sms"))
    return found
