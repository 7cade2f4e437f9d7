"""``python -m edgeserve.commands.lm_model MODEL.gguf OUT.onnx``: a GGUF file as an ONNX graph with a cache in place."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from typing import Sequence

from edgeserve.commands.lm_model.gguf_file import GgufModel
from edgeserve.commands.lm_model.graph import write_model
from edgeserve.commands.lm_model.tokenizer_file import write_tokenizer
from edgeserve.commands.lm_model.weights import BITS
from edgeserve.config.files import file_sha256, resolve_path
from edgeserve.errors import EdgeServeError

CONTEXT = 2048
"""Tokens of the longest sequence unless ``--context`` says: enough for a conversation on a device, and each slot
reserves address space for it."""

TOKENIZER = "tokenizer.json"


def main(argv: Sequence[str] | None = None) -> int:
    """Write the files; 0 when they are there."""
    parser = argparse.ArgumentParser(prog="python -m edgeserve.commands.lm_model", description=__doc__)
    parser.add_argument("source", metavar="MODEL.gguf", help="a Llama-like model; 'cache:NAME/path' is in the cache")
    parser.add_argument("target", metavar="OUT.onnx", help="'cache:NAME/path' likewise")
    parser.add_argument("--weights", choices=list(BITS), default="float32", help="how matrices are stored")
    parser.add_argument("--context", type=int, default=CONTEXT, help="tokens of the longest sequence")
    parser.add_argument("--again", action="store_true", help="write although the files are there")
    args = parser.parse_args(argv)
    target = resolve_path(args.target, os.getcwd())
    if not target.endswith(".onnx"):
        parser.error(f"OUT = {args.target!r}: expected a name that ends in .onnx")
    if os.path.exists(target) and not args.again:
        print(f"{target} is there already; --again writes it anew")
        return 0
    try:
        convert(resolve_path(args.source, os.getcwd()), target, args.weights, args.context)
    except (EdgeServeError, OSError) as error:
        print(f"lm_model: {error}", file=sys.stderr)
        return 2
    print(f"wrote {target}: {weights_mb(target)} MB of weights as {args.weights}")
    return 0


def convert(source: str, target: str, weights: str, context: int) -> None:
    """Write all files beside ``target``. The graph gets its name last, so that half a model is never found."""
    model = GgufModel(source)
    vocabulary = model.vocabulary()
    folder = os.path.dirname(target)
    os.makedirs(folder, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".lm-", dir=folder) as work:
        name = os.path.basename(target)
        write_tokenizer(os.path.join(work, TOKENIZER), vocabulary)
        about = {
            "tokenizer": TOKENIZER,
            "specials": [],
            "first": vocabulary.first,
            "stops": vocabulary.stops,
            "chat_template": vocabulary.chat_template,
            "bos_token": vocabulary.bos_token,
            "eos_token": vocabulary.eos_token,
            "source": os.path.basename(source),
            "source_sha256": file_sha256(source),
        }
        write_model(os.path.join(work, name), model.shape(context), model.tensor, about, weights)
        for written in sorted(os.listdir(work), key=lambda file: file == name):
            os.replace(os.path.join(work, written), os.path.join(folder, written))


def weights_mb(target: str) -> int:
    """Millions of bytes in the file of weights beside the graph."""
    return os.path.getsize(target + ".data") // 1_000_000


if __name__ == "__main__":
    sys.exit(main())
