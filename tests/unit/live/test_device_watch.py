"""The device while serving: which monitors run, and what their news means for devices of the configuration."""

from __future__ import annotations

import itertools
import queue

import pytest
from cuda_double import CudaDouble

from edgeserve.config.loading import parse_config
from edgeserve.device import sources
from edgeserve.device.boards import KINDS, Machine
from edgeserve.device.source import FAST_NS
from edgeserve.device.state import DeviceState
from edgeserve.engines.cuda import driver
from edgeserve.live import device_watch
from edgeserve.live.device_watch import DeviceLog, DeviceNews, DeviceWatch
from edgeserve.sched.protocol.events import DeviceChanged

ORIN, CARD, CPU = (Machine(KINDS[slug]) for slug in ("agx-orin", "desktop-gpu", "cpu"))
STATE = DeviceState(
    memory_available_bytes=4 << 30,
    gpu_memory_free_bytes=1 << 30,
    temperature_c=50.0,
    temperature_hard_c=100.0,
    power_w=12.0,
    power_mode="MAXN",
)


class Fixed:
    name, every_ns = "fixed", FAST_NS

    def __init__(self, state):
        self.state = state

    def read(self, now_ns):
        return self.state

    def close(self):
        self.state = DeviceState()


def config_of(**devices):
    return parse_config({"device": devices or {"cpu": {}}})


def watch_of(config, board, made=None, posted=None):
    clock = itertools.count(0, 10**9)
    made = made if made is not None else []

    def sources(of, gpu):
        made.append(gpu)
        return [Fixed(STATE)]

    return DeviceWatch(config, (posted if posted is not None else []).append, lambda: next(clock), sources, board)


@pytest.mark.parametrize(
    ("limits", "board", "count"),
    [
        ({}, CPU, 0),
        ({}, ORIN, 1),
        ({}, CARD, 1),
        ({"headroom": "1MB"}, CPU, 1),
        ({"power_cap": 15.0}, CPU, 1),
    ],
)
def test_where_a_monitor_runs(limits, board, count):
    made = []
    watch_of(config_of(cpu=limits), board, made)
    assert len(made) == count


def test_one_monitor_per_gpu():
    made = []
    config = config_of(a={"kind": "cuda"}, b={"kind": "cuda:2"}, c={"kind": "cuda"}, host={})
    watch = watch_of(config, CARD, made)
    assert made == [0, 2]
    table = watch.table()["monitors"]
    assert {name: monitor["devices"] for name, monitor in table.items()} == {"gpu0": ["a", "c", "host"], "gpu2": ["b"]}
    watch.stop()


def test_cudas_gpus_are_found_in_nvml_where_they_lie_on_the_bus(monkeypatch):
    asked = []
    monkeypatch.setattr(device_watch, "sources_for", lambda *words: asked.append(words[2:]) or [Fixed(STATE)])
    monkeypatch.setitem(driver._open, "cuda-bindings", CudaDouble(devices=2))
    config = config_of(a={"kind": "cuda"}, b={"kind": "cuda:1"})
    DeviceWatch(config, print, lambda: 0, board=CARD)
    DeviceWatch(config, print, lambda: 0, board=ORIN)
    DeviceWatch(config_of(), print, lambda: 0, board=CARD)  # without a GPU CUDA is not asked
    buses = [words[-1] for words in asked]
    assert buses == ["0000:65:00.0", "0000:64:00.0", "", "", ""]


def test_the_free_memory_of_a_card_is_asked_of_nvml_where_it_lies_on_the_bus(monkeypatch):
    asked = []

    class Nvml(Fixed):
        def __init__(self, bus_id):
            asked.append(bus_id)
            super().__init__(STATE)

    monkeypatch.setattr(device_watch, "NvmlSource", Nvml)
    monkeypatch.setitem(driver._open, "cuda-bindings", CudaDouble(devices=2))
    monkeypatch.setattr(device_watch, "detect_board", lambda: CARD)
    assert device_watch.card_free_bytes(1) == 1 << 30
    monkeypatch.setattr(device_watch, "detect_board", lambda: ORIN)
    monkeypatch.setattr(device_watch.MemorySource, "read", lambda *_: DeviceState(memory_available_bytes=3 << 30))
    assert device_watch.card_free_bytes(0) == 3 << 30, "the host's memory, which the context takes too"
    assert asked == ["0000:64:00.0"]


def test_the_threads_post_news_log_and_end(caplog):
    caplog.set_level("INFO", "edgeserve")
    posted: queue.Queue = queue.Queue()

    class Posts(list):
        def append(self, item):
            posted.put(item)

    watch = watch_of(config_of(), ORIN, posted=Posts())
    watch.start()
    news = posted.get(timeout=30)
    watch.stop()
    assert isinstance(news, DeviceNews)
    assert "device: power mode MAXN" in caplog.messages
    (changed,) = [event for event in news.events if isinstance(event, DeviceChanged)]
    assert (changed.device, changed.memory_free_bytes, changed.heat, changed.power_w) == ("cpu", 4 << 30, 0.5, 12.0)
    table = watch.table()
    assert table["board"] == "agx-orin"
    assert table["monitors"]["gpu0"]["readings"]["power_w"] == 12.0


def test_throttling_is_logged_at_once_and_its_end_and_another_power_mode_when_they_last(caplog):
    caplog.set_level("INFO", "edgeserve")
    log, logged = DeviceLog(), []
    for at_s, throttles, power_mode in (
        (0, (), "MAXN"),
        (1, ("over_current:oc3",), "MAXN"),
        (2, (), "MAXN"),
        (2.5, ("over_current:oc3",), "MAXN"),  # it flickers: one piece of news
        (3, (), "15W"),
        (3.5, (), "15W"),
        (4, (), "15W"),
        (5, None, None),
    ):
        log.note(DeviceState(round(at_s * 10**9), throttles=throttles, power_mode=power_mode))
        logged += [(at_s, record.getMessage()) for record in caplog.records]
        caplog.clear()
    assert logged == [
        (0, "device: power mode MAXN"),
        (1, "device: throttled by over_current:oc3"),
        (4, "device: no longer throttled"),
        (4, "device: power mode 15W"),
    ]


def test_a_profile_reads_the_clocks_of_the_gpu_that_it_measures(monkeypatch):
    """CUDA and the driver may count GPUs in another order: the bus tells which is which."""
    asked = []
    monkeypatch.setattr(device_watch, "detect_board", lambda: Machine(KINDS["desktop-gpu"]))
    monkeypatch.setattr(device_watch, "bus_id_of", lambda index: f"bus {index}")
    monkeypatch.setattr(sources, "sources_for", lambda **more: asked.append(more) or [])
    assert device_watch.clocks_of(1) == (0.0, 0.0)
    assert [(more["gpu"], more["bus_id"]) for more in asked] == [(1, "bus 1")]
