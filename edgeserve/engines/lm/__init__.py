"""The ``lm`` engine: language models that answer token by token, on ONNX Runtime, llama.cpp or torch.

``engine`` is the entry, ``step_loop`` makes the steps, the same for every back end. ``generation`` reads what an item
asks for, ``sampling`` chooses tokens, ``answer_text`` turns tokens into text, ``tokenizers`` and ``chat`` turn text
into tokens, ``sequence`` is the state of an unfinished answer, ``slots`` says which sequence holds which part of a back
end's memory. ``backend`` is the contract of a back end: ``onnx_backend`` (with ``kv_rows`` and
``onnx_sessions``), ``llama_backend`` and ``transformers_backend`` (with ``transformers_rows``, and
``transformers_encdec`` for models with an encoder). ``server_engine`` (with ``server_request``, ``server_answer`` and
``server_stream``) is an engine of its own, for models that a local server has.
"""

from __future__ import annotations

from edgeserve.config.schema import ModelConfig

ENDINGS = {
    ".onnx": "onnx",
    ".gguf": "llama.cpp",
    "config.json": "torch",
}
"""The ending of a file's name -> the back end; the first that fits."""


def backend_of(model: ModelConfig) -> str:
    """The name of the back end that the options ask for, or that belongs to the file; empty for neither."""
    file = model.file.lower()
    return str(model.options.get("backend", "")) or next(
        (backend for ending, backend in ENDINGS.items() if file.endswith(ending)), ""
    )
