"""Commands, configuration keys and values of earlier versions, each with what to use instead.

The one table of what went. Where an old name is met, its error ends with the sentence that stands here.
"""

from __future__ import annotations

import re
from typing import Any, Mapping

from edgeserve.errors import ConfigError

BUS_SHARES = (
    "send the tensor's bytes behind the JSON (binary_data), or ask over the bus, whose local clients share memory "
    "with the server (docs/guide/clients.md)"
)

MEMORY = "[server] memory bounds all that clients make the server keep (docs/guide/bounds.md): set that"
FIXED = "its bound is fixed ({bound}); leave the key out"

GONE = {
    **{
        f"edgeserve {name}": f"fronts are started by name: 'edgeserve front {name}'"
        for name in ("http", "frigate", "camera", "bag", "wyoming", "mqtt")
    },
    "edgeserve stats": "'edgeserve top --count 1' shows it, 'edgeserve top --json' has all of it",
    "edgeserve trace": "'edgeserve record --timeline FILE' writes the timeline",
    "edgeserve monitor": "'edgeserve top --device' shows this device, 'edgeserve top --replay FILE' recorded lines",
    "edgeserve keys": "'edgeserve init --keys server' and 'edgeserve init --keys NAME' make them, in --out FOLDER",
    "edgeserve fit": "'edgeserve profile --fit APP=HISTORY' learns from a history",
    "edgeserve profile --tolerance": "an answer of a regression counts as the same within a tenth of how far they lie "
    "apart; leave the option out",
    "edgeserve tune": "apps that name no policy are served by the plan, which has nothing to choose; "
    "'edgeserve simulate CONFIG --policy NAME' compares it with others, 'edgeserve check' says which rates can be met",
    "edgeserve zenoh": "the node in examples/ros2 asks an app about a topic of ROS 2, "
    "'edgeserve front bag' about a bag",
    "[app.NAME] pipeline": "write the file's modules as [[app.NAME.node]] tables, with name, model and after "
    "(docs/guide/pipelines.md); lane and max_batch are lanes and batch of [model.NAME], work is [app.NAME.predict]",
    "[http]": "fronts have a table each: rename it to [front.http], its keys mean the same",
    "[front.NAME] shared_memory": BUS_SHARES,
    **{
        f"[server] {key}": MEMORY
        for key in ("message_max", "pending_bytes_max", "client_bytes_max", "unread_bytes_max", "shared_memory")
    },
    "[server] client_silence": FIXED.format(bound="10 s without a heartbeat"),
    "[server] clients_max": FIXED.format(bound="256 clients"),
    "[server] on_device_lost": "where a service manager or a container starts the server, it ends when a device is "
    "lost, so that another process begins; elsewhere it goes on without the device",
    **dict.fromkeys(
        ("[server] metrics", "[server] metrics_remote"),
        "the HTTP front serves them at /metrics (docs/guide/monitoring.md): set [front.http] listen",
    ),
    "[server] trace_steps": "steps are kept from the first question of 'edgeserve record' on; 'edgeserve serve "
    "--record FILE' writes all of them",
    "[server] otlp": "the standard variable OTEL_EXPORTER_OTLP_ENDPOINT says where a server sends spans, a program "
    "gives its Runtime tracer_provider=... (docs/guide/tracing.md)",
    "[app.NAME] pending_bytes_max": "[server] memory bounds the bytes of all apps, a quarter of it those of a client, "
    "and [app.NAME] pending_max the requests of this one",
    "[lane.NAME] wait": "a lane waits for clients that were just answered where that pays, 20 ms at most; a model with "
    "batch = [1] knows no waits",
    "[lane.NAME] flush_denormals": "numbers too small to be normal always count as 0 on a lane; leave the key out",
    "[device.NAME] clock": "the clock of the model's profile is the full speed, measure it with 'edgeserve profile'; "
    "without one it is the highest clock seen",
    "[device.NAME] contention": "it is the simulation's: [run] contention = { NAME = 1.3 } of a scenario",
    "[device.NAME] index": "kind says which GPU: kind = 'cuda:1'",
    "[device.NAME] load_rate": "give each model its load time, load = '120ms' of [model.NAME], or measure it with "
    "'edgeserve profile'",
    **dict.fromkeys(
        ("[device.NAME] heat_hard", "[device.NAME] heat_soft"),
        "the device's own trip points say from where on to save, and where it throttles; leave the key out",
    ),
    "[app.NAME] steps_max": FIXED.format(bound="65536 steps of a request"),
    "[app.NAME] work_max": FIXED.format(bound="a million times the work of a usual request"),
    "[app.NAME] history_records": FIXED.format(bound="the latest 5000 records"),
    "[model.NAME] quality": "the model itself has 1, [model.NAME.variants] says what the others are worth beside it",
    "[app.NAME] standalone": "stream = 'optional' has requests without a stream begin from an empty state",
    "[app.NAME] length": "it is a prediction: [app.NAME.predict] length = 'INPUT[AXIS]'",
    "[app.NAME] answer_lengths": "it is a prediction: [app.NAME.predict] steps = 'FILE.npz'",
    "[app.NAME] learn_lengths": "'edgeserve profile --fit APP=HISTORY' learns from recorded answers",
    "[monitor]": "the monitor reads on a Jetson, beside an NVIDIA GPU, and where a device has headroom or power_cap; "
    "leave the section out",
    "[front.NAME] labels": "labels_file names a file of them, one a line",
    "[front.NAME] grpc_bytes_max": "bytes over HTTP and gRPC are counted together: [front.http] bodies_max",
    "edgeserve front http --with-stdin": "a front ends with the signal of its service manager",
    "edgeserve front http --verbose": "the log has one level; leave the option out",
    "edgeserve front mqtt --broker": "--host and --port name the broker, --tls encrypts",
    "edgeserve front mqtt --asker": "it is --askers WHO, again for more",
    "edgeserve front mqtt --camera": "it is --cameras NAME=TOPIC, again for more",
    "edgeserve front mqtt --every": "it is --every-s SECONDS",
    "edgeserve front mqtt --labels": "it is --labels-file FILE",
    "edgeserve front mqtt --score": "it is --score-min SHARE",
    "edgeserve front camera --labels": "it is --labels-file FILE",
    "edgeserve front wyoming --language": "it is --languages CODE, again for more",
    "edgeserve front wyoming --wake-word": "it is --wake-words WORD, again for more",
    **{
        f"edgeserve front wyoming --{role}": f"--apps {role}=APP takes its place"
        for role in ("wake", "vad", "asr", "intent", "tts")
    },
    "shared_memory_region": BUS_SHARES,
    "onnx-encoder": "the back end torch serves the folders that transformers saved, file = 'FOLDER/config.json'; "
    "other graphs need an engine of your own (docs/guide/encoder-decoder.md)",
}
"""Old name -> what to use instead. A command stands behind ``edgeserve``, an option behind its command, a key behind
its section, as in ``"[app.NAME] key"``, a section as ``"[section]"``, and the value of an option by itself."""


def refuse_gone(where: str, table: Mapping[str, Any]) -> None:
    """Raises :class:`ConfigError` for a key that went. ``where`` is its section: ``[app.detect]``, empty for the file,
    whose keys are sections."""
    section = re.sub(r"[.][^]]+", ".NAME", where)
    for key, value in table.items():
        if not where and f"[{key}]" in GONE:
            raise ConfigError(f"[{key}]: there is no such section any more; {GONE[f'[{key}]']}")
        if f"{section} {key}" in GONE:
            raise ConfigError(f"{where} {key} = {value!r}: there is no such key any more; {GONE[f'{section} {key}']}")
