"""The numbers of ``stats()`` as Prometheus metric families.

Names follow the conventions of Prometheus: base units (seconds, bytes, joules, celsius), ``_total`` on counters. Every
label comes from the configuration or from a bounded table (outcomes, reasons, sensors): no client's name, stream or
input ever becomes one, so the number of series is bounded, however many names clients send.
"""

from __future__ import annotations

from typing import Any, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)

Stats = Mapping[str, Any]

STATES = ("up", "hangs", "down")
LEVELS = ("none", "soft", "hard")


def families(stats: Stats, version: str) -> Iterator[Metric]:
    """Every metric of one answer of ``stats()``."""
    yield InfoMetricFamily("edgeserve", "The server.", value={"version": version})
    yield GaugeMetricFamily(
        "edgeserve_uptime_seconds", "Time since the server began to serve.", value=float(stats["uptime_s"])
    )
    yield GaugeMetricFamily(
        "edgeserve_requests_open", "Accepted requests that have not ended, over all apps.", value=float(stats["open"])
    )
    yield GaugeMetricFamily(
        "edgeserve_requests_open_max", "How many may be open at a time.", value=float(stats["pending_max"])
    )
    yield from _of_apps(stats["apps"])
    yield from _of_lanes(stats["lanes"], float(stats["uptime_s"]))
    yield from _of_models(stats["models"])
    yield from _of_devices(stats["devices"])
    yield from _of_readings(stats.get("device", {}))


def _of_apps(apps: Stats) -> Iterator[Metric]:
    accepted = CounterMetricFamily("edgeserve_requests_accepted", "Requests given to the scheduler.", labels=["app"])
    ended = CounterMetricFamily("edgeserve_requests", "Requests that ended, by outcome.", labels=["app", "outcome"])
    reasons = CounterMetricFamily(
        "edgeserve_requests_unanswered",
        "Requests without an answer, by outcome and reason.",
        labels=["app", "outcome", "reason"],
    )
    late = CounterMetricFamily("edgeserve_requests_late", "Answers after their deadline.", labels=["app"])
    took = HistogramMetricFamily(
        "edgeserve_request_duration_seconds", "From arrival to answer, of answered requests.", labels=["app"]
    )
    phases = CounterMetricFamily(
        "edgeserve_request_phase_seconds", "Where the time of answered requests went.", labels=["app", "phase"]
    )
    expected = GaugeMetricFamily(
        "edgeserve_request_expected_seconds", "What one request is expected to take alone.", labels=["app"]
    )
    slo = GaugeMetricFamily("edgeserve_request_slo_seconds", "The deadline of the app, from arrival.", labels=["app"])
    energy = CounterMetricFamily(
        "edgeserve_request_energy_joules", "Energy of the app's work, where power is known.", labels=["app"]
    )
    for app, row in apps.items():
        accepted.add_metric([app], row["accepted"])
        late.add_metric([app], row["late"])
        for outcome, count in row["outcomes"].items():
            ended.add_metric([app, outcome], count)
        for outcome, table in row["reasons"].items():
            for reason, count in table.items():
                reasons.add_metric([app, outcome, reason], count)
        histogram = row["latency_histogram"]
        took.add_metric([app], buckets=_buckets(histogram), sum_value=histogram["sum_ms"] / 1000)
        answered = row["outcomes"]["completed"]
        for phase, mean_ms in row["breakdown_ms"].items():
            phases.add_metric([app, phase], mean_ms * answered / 1000)
        if row.get("expected_ms") is not None:
            expected.add_metric([app], row["expected_ms"] / 1000)
        if row.get("slo_ms") is not None:
            slo.add_metric([app], row["slo_ms"] / 1000)
        if "energy_j" in row:
            energy.add_metric([app], row["energy_j"])
    yield from (accepted, ended, reasons, late, took, phases, expected, slo, energy)


def _buckets(histogram: Stats) -> List[Tuple[str, float]]:
    """Cumulative counts by upper bound in seconds."""
    bounds = [_bound(bound_ms / 1000) for bound_ms in histogram["bounds_ms"]] + ["+Inf"]
    buckets: List[Tuple[str, float]] = []
    total = 0
    for bound, count in zip(bounds, histogram["counts"]):
        total += count
        buckets.append((bound, total))
    return buckets


def _bound(seconds: float) -> str:
    return repr(float(seconds))


def _of_lanes(lanes: Stats, uptime_s: float) -> Iterator[Metric]:
    busy = CounterMetricFamily("edgeserve_lane_busy_seconds", "Time in which the lane ran something.", labels=["lane"])
    counters = {
        key: CounterMetricFamily(f"edgeserve_lane_{key}", text, labels=["lane"])
        for key, text in (
            ("works", "Batches, loads and evictions that the lane finished."),
            ("jobs", "Jobs in the lane's batches."),
            ("probes", "Batches that measured and answered no request."),
            ("refused", "Works that the lane did not start."),
            ("failed", "Works that failed."),
        )
    }
    in_flight = GaugeMetricFamily(
        "edgeserve_lane_in_flight", "Works given to the lane and not answered.", labels=["lane"]
    )
    oldest = GaugeMetricFamily(
        "edgeserve_lane_oldest_seconds", "How long the oldest of them has been there.", labels=["lane"]
    )
    state = GaugeMetricFamily("edgeserve_lane_state", "1 for the state that the lane is in.", labels=["lane", "state"])
    for lane, row in lanes.items():
        busy.add_metric([lane], row["busy"] * uptime_s)
        for key, family in counters.items():
            family.add_metric([lane], row[key])
        in_flight.add_metric([lane], row["in_flight"])
        oldest.add_metric([lane], row["oldest_ms"] / 1000)
        for name in STATES:
            state.add_metric([lane, name], float(row["state"] == name))
    yield from (busy, *counters.values(), in_flight, oldest, state)


def _of_models(models: Stats) -> Iterator[Metric]:
    typical = GaugeMetricFamily(
        "edgeserve_batch_expected_seconds",
        "Typical time of a batch, as believed now.",
        labels=["model", "lane", "size"],
    )
    pace = GaugeMetricFamily(
        "edgeserve_model_pace_ratio", "Measured to expected time of late; 1 = as expected.", labels=["model", "lane"]
    )
    for model, row in models.items():
        for lane, figures in row["latency"].items():
            pace.add_metric([model, lane], figures["pace"])
            for size, known in figures["sizes"].items():
                typical.add_metric([model, lane, size], known["typical_ms"] / 1000)
    yield from (typical, pace)


def _of_devices(devices: Stats) -> Iterator[Metric]:
    memory = GaugeMetricFamily(
        "edgeserve_device_memory_bytes", "Memory by use: models and states, budget, free.", labels=["device", "use"]
    )
    resident = GaugeMetricFamily(
        "edgeserve_model_resident", "1 for a model that is in the device's memory.", labels=["device", "model"]
    )
    limits = GaugeMetricFamily(
        "edgeserve_device_limit_level", "Nearness to a limit: 0 below, 1 soft, 2 hard.", labels=["device", "limit"]
    )
    for device, row in devices.items():
        for use in ("used", "state", "budget", "free"):
            if row.get(f"{use}_bytes") is not None:
                memory.add_metric([device, use], row[f"{use}_bytes"])
        for model in row["models"]:
            resident.add_metric([device, model], 1.0)
        for limit in ("thermal", "power"):
            limits.add_metric([device, limit], float(LEVELS.index(row[limit])))
    yield from (memory, resident, limits)


READINGS: Sequence[Tuple[str, str, str]] = (
    ("gpu_load", "gpu_load_ratio", "Load of the GPU."),
    ("gpu_clock_hz", "gpu_clock_hertz", "Clock of the GPU."),
    ("cpu_load", "cpu_load_ratio", "Load of the cores that are online."),
    ("emc_load", "memory_controller_load_ratio", "Load of the memory controller."),
    ("memory_available_bytes", "memory_available_bytes", "Memory that programs can still have."),
    ("memory_total_bytes", "memory_total_bytes", "Memory of the host."),
    ("gpu_memory_free_bytes", "gpu_memory_free_bytes", "Free memory of a discrete GPU."),
    ("power_w", "power_watts", "Power of the whole module or card."),
    ("fan", "fan_ratio", "Share of the fan's full drive."),
)
"""Field of :class:`~edgeserve.device.state.DeviceState`, name of its metric, help."""


def _of_readings(device: Stats) -> Iterator[Metric]:
    """The last readings of the device's monitors; a quantity that no source tells has no series."""
    found: Dict[str, GaugeMetricFamily] = {}

    def put(name: str, text: str, labels: Dict[str, str], value: Optional[float]) -> None:
        if value is None:
            return
        family = found.get(name)
        if family is None:
            family = found[name] = GaugeMetricFamily(f"edgeserve_board_{name}", text, labels=list(labels))
        family.add_metric(list(labels.values()), float(value))

    for monitor, row in device.get("monitors", {}).items():
        readings = row["readings"]
        if readings is None:
            continue
        for key, name, text in READINGS:
            put(name, text, {"monitor": monitor}, readings.get(key))
        for zone, degrees in readings.get("temperatures_c", {}).items():
            put("temperature_celsius", "Temperature by zone.", {"monitor": monitor, "zone": zone}, degrees)
        for rail, watts in readings.get("rails_w", {}).items():
            put("rail_power_watts", "Power by rail.", {"monitor": monitor, "rail": rail}, watts)
    yield from found.values()
