"""Draw ``docs/reference/model-files.md``: what ``edgeserve init`` makes of each kind of model file, by asking it.

The files are written by ``lib/model_kinds.py``. Which batch sizes pay depends on the machine: all that the model takes
are shown.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import sys
import tempfile
from pathlib import Path
from typing import Any, Dict, List
from unittest import mock

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # scripts/

from lib import drawn, model_kinds

from edgeserve import cli
from edgeserve.commands.init import trial
from edgeserve.config.loading import load_config
from edgeserve.config.plain_text import toml_value
from edgeserve.config.schema import Config

PAGE, SCRIPT = "docs/reference/model-files.md", "scripts/draw/model_files.py"


def parts() -> Dict[str, str]:
    """The page's parts by name."""
    lines: List[str] = []
    about = ""
    with tempfile.TemporaryDirectory(prefix="kinds-") as folder, mock.patch.object(trial, "worthwhile", dict):
        for number, kind in enumerate(model_kinds.KINDS):
            if kind.about != about:
                about = kind.about
                lines += ["", f"## {about}", "", "| file | such as | `edgeserve init` |", "| --- | --- | --- |"]
            lines.append(f"| {kind.name} | {kind.of} | {_cell(made_of(kind, folder, number))} |")
    return {"kinds": "\n".join(lines)}


def made_of(kind: model_kinds.Kind, folder: str, number: int) -> str:
    """A summary of the configuration that init writes for a file of a kind, or of its refusal."""
    path = model_kinds.write(kind, folder, number)
    out = os.path.join(folder, "edge.toml")
    said = io.StringIO()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(said):
        status = cli.main(["init", "--here", path, "--out", out, "--force", "--cpu", *kind.arguments])
    if status:
        refusal = said.getvalue().strip().splitlines()[-1].partition("edgeserve: ")[2]
        name = os.path.splitext(os.path.basename(path))[0]
        return f"refused: *{refusal.replace(path, 'mine' + kind.ending).replace(name, 'mine')}*"
    return served(load_config(out))


def served(config: Config) -> str:
    """The engine, inputs and outputs of a configuration's one model."""
    (model,) = config.models.values()
    (app,) = config.apps.values()
    inputs = [f"`{name}` {tensor.dtype} {_shape(tensor.shape)}" for name, tensor in app.inputs.items()]
    words = [f"{', '.join(inputs)}; batches of {', '.join(map(str, model.batch))}"]
    if model.state:
        axis = model.options.get("state_axis", 0)
        states = [f"`{name}` (then `{output}`)" for name, output in model.state.items()]
        words.append(f"states {', '.join(states)}, batch on axis {toml_value(axis)}")
    if model.options.get("batch_axis") is False:
        words.append("`batch_axis = false`")
    for key in ("settings", "constants"):
        if key in model.options:
            words.append(f"`{key} = {toml_value(model.options[key])}`")
    return "; ".join(words)


def _shape(shape: Any) -> str:
    return "[" + ", ".join("any" if size < 0 else str(size) for size in shape) + "]"


def _cell(text: str) -> str:
    return re.sub(r"\s+", " ", text).replace("|", "\\|").replace("<", "&lt;")


if __name__ == "__main__":
    sys.exit(drawn.main(PAGE, parts(), SCRIPT))
