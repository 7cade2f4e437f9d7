"""Messages to Home Assistant about a server over MQTT: the entities of its device, and their states.

Pure functions. Topics and names are the front's; the words are those of Home Assistant's discovery.
"""

from __future__ import annotations

import json
from typing import Any, Dict, Mapping, Optional

import numpy as np

from edgeserve import __version__
from edgeserve.front import as_json, key_of, label_of, of_text, topic_part
from edgeserve.fronts.mqtt_settings import Mqtt

STATE_CHARS_MAX = 255
"""The most characters of a state."""

STALE_S = 60
"""Seconds without a new picture after which a camera's state is unknown."""

READINGS = {
    "temperature_c": ("Temperature", "temperature", "°C", 1.0),
    "power_w": ("Power", "power", "W", 1.0),
    "gpu_load": ("GPU load", None, "%", 100.0),
    "cpu_load": ("CPU load", None, "%", 100.0),
    "memory_available_bytes": ("Memory available", "data_size", "MiB", 1 / 1024**2),
    "gpu_memory_free_bytes": ("GPU memory free", "data_size", "MiB", 1 / 1024**2),
    "fan": ("Fan", None, "%", 100.0),
}
"""Reading of a device's monitor -> its name, Home Assistant's class, unit and factor."""


def entities(
    options: Mqtt, apps: Mapping[str, Any], stats: Mapping[str, Any], device: Mapping[str, Any]
) -> Dict[str, str]:
    """The entities that Home Assistant shows: topic -> configuration."""
    base = options.base
    found: Dict[str, str] = {}
    common = {
        "availability_topic": f"{base}/status",
        "device": {
            "identifiers": [options.node],
            "name": f"EdgeServe {options.name}",
            "manufacturer": "EdgeServe",
            "model": str(stats.get("device", {}).get("model") or "server"),
            "sw_version": __version__,
        },
        "origin": {"name": "EdgeServe", "sw_version": __version__},
    }

    def put(kind: str, key: str, name: str, **more: Any) -> None:
        about = {"name": name, "unique_id": f"{options.node}_{key}", **common, **more}
        topic = f"{options.discovery}/{kind}/{options.node}/{key}/config"
        found[topic] = json.dumps({each: value for each, value in about.items() if value is not None})

    def sensor(key: str, name: str, topic: str, value: str, unit: Optional[str] = None, **more: Any) -> None:
        put("sensor", key, name, state_topic=topic, value_template=value, unit_of_measurement=unit, **more)

    put("binary_sensor", "ready", "Ready", state_topic=f"{base}/ready", device_class="running")
    for key, (name, kind, unit, _) in READINGS.items():
        if key in device:
            value = f"{{{{ value_json.{key} }}}}"
            sensor(key, name, f"{base}/device", value, unit, device_class=kind, state_class="measurement")
    for lane in device.get("lanes", {}):
        value = f"{{{{ value_json.lanes[{json.dumps(lane)}] }}}}"
        sensor(f"lane_{key_of(lane)}", f"Lane {lane}", f"{base}/device", value, "%", state_class="measurement")
    for app in stats.get("apps", {}):
        for key, name in (("completed", "answered"), ("refused", "refused"), ("late", "late")):
            topic, value = f"{base}/apps/{topic_part(app)}", f"{{{{ value_json.{key} }}}}"
            sensor(f"app_{key_of(app)}_{key}", f"{app} {name}", topic, value, state_class="total_increasing")
    for app in options.ask:
        topic = f"{base}/answer/{topic_part(app)}"
        sensor(f"answer_{key_of(app)}", f"{app} answer", topic, "{{ value_json.text }}", json_attributes_topic=topic)
        if any(of_text(about) for about in apps[app]["inputs"].values()):
            put(
                "text",
                f"ask_{key_of(app)}",
                f"Ask {app}",
                command_topic=f"{base}/ask/{topic_part(app)}",
                max=STATE_CHARS_MAX,
            )
    for camera in options.cameras:
        topic = f"{base}/detections/{camera}"
        shown: Dict[str, Any] = {"expire_after": STALE_S, "json_attributes_topic": topic}
        sensor(f"camera_{camera}_count", f"{camera} objects", topic, "{{ value_json.count }}", None, **shown)
        for label in options.watched:
            put(
                "binary_sensor",
                f"camera_{camera}_{label_of(label)}",
                f"{camera} {label}",
                state_topic=topic,
                value_template=f"{{{{ 'ON' if value_json.labels.get({json.dumps(label)}, 0) else 'OFF' }}}}",
                device_class="occupancy",
                expire_after=STALE_S,
            )
        types, topic = list(options.watched), f"{base}/events/{camera}"
        put("event", f"camera_{camera}_event", f"{camera} sees", state_topic=topic, event_types=types)
    if options.may_reload:
        put("button", "reload", "Reload", command_topic=f"{base}/reload", device_class="restart")
    return found


def device_of(stats: Mapping[str, Any]) -> Dict[str, Any]:
    """Readings that are known, of the first monitor that has them, and how busy the lanes are (percent)."""
    told: Dict[str, Any] = {"open": stats.get("open", 0)}
    for row in stats.get("device", {}).get("monitors", {}).values():
        for key, (_, _, _, factor) in READINGS.items():
            value = (row["readings"] or {}).get(key)
            if value is not None and key not in told:
                told[key] = round(float(value) * factor, 1)
    lanes = stats.get("lanes", {})
    told["lanes"] = {lane: round(100 * float(row["busy"]), 1) for lane, row in lanes.items()}
    return told


def app_of(row: Mapping[str, Any]) -> Dict[str, Any]:
    """The counts of one app, from its row of ``stats``."""
    ends = row["outcomes"]
    return {
        "completed": ends["completed"],
        "refused": ends["rejected"] + ends["dropped"],
        "failed": ends["failed"],
        "late": row["late"],
        "open": row["open"],
        "latency_ms": as_json({key: np.float64(value) for key, value in row["latency_ms"].items()}),
    }
