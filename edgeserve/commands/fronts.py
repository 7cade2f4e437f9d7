"""Common pieces of the commands of all fronts for other systems: their options, which are the keys of their tables,
which server they ask, and their life until a signal."""

from __future__ import annotations

import argparse
import logging
import sys
from dataclasses import MISSING, replace
from typing import Any, Collection, Dict, Mapping, Optional, Tuple, Type

from edgeserve.config.json_schema import meanings_of
from edgeserve.config.plain_text import log_to
from edgeserve.config.readers import schema_of
from edgeserve.config.toml_text import written
from edgeserve.front import Front
from edgeserve.front.registry import entries_of, front_of, server_key_of, with_options
from edgeserve.front.runner import LOG_FORMAT, run_front
from edgeserve.python_file import CONFIG_HELP, config_at


def add_front_arguments(parser: argparse.ArgumentParser, kind: Optional[Type[Any]]) -> None:
    """Add the configuration, the server, and an option for each key of the front's settings, where they are known."""
    parser.add_argument("config", nargs="?", default="", help=f"for its endpoint and its [front.NAME]: {CONFIG_HELP}")
    parser.add_argument("--endpoint", default=None, help="where the server listens (default: this user's own bus)")
    if kind is not None:
        add_setting_arguments(parser, kind)


def add_setting_arguments(parser: argparse.ArgumentParser, kind: Type[Any], keys: Collection[str] = ()) -> None:
    """Add an option for each of these ``keys`` of settings, or for all: ``tts_rate`` is ``--tts-rate``."""
    try:
        meanings = meanings_of(kind)
    except (OSError, ValueError):  # another package's, whose source is not there or says less
        meanings = {}
    for key, item in entries_of(kind).items():
        if not keys or key in keys:
            form = _form("FILE" if item.name in kind.FILES else key.upper(), schema_of(item.metadata["read"]))
            text = meanings.get(item.name, f"the key {key} of [front.NAME]")
            text += "; again for more" if form.get("action") == "append" else ""
            if item.default is not MISSING and item.default:
                usual = written(item.name, item.default, item.metadata["read"])
                text += f" (default: {', '.join(usual) if isinstance(usual, tuple) else usual})"
            parser.add_argument(option_of(key), dest=_dest(key), default=None, help=text.replace("%", "%%"), **form)


def _form(name: str, schema: Mapping[str, Any]) -> Dict[str, Any]:
    """The arguments of argparse for values of a JSON Schema; the front's own reader checks more."""
    kind = schema.get("type")
    if kind == "boolean":
        return {"action": "store_true"}
    if kind == "array" and schema["items"].get("type") == "integer":
        return {"type": _numbers, "metavar": "N,N"}
    if kind in ("array", "object"):
        pair = kind == "object"
        return {
            "action": "append",
            "type": _pair if pair else str,
            "metavar": "NAME=VALUE" if pair else name.rstrip("S"),
        }
    return {"type": {"integer": int, "number": float}.get(str(kind), str), "metavar": name}


def _numbers(text: str) -> Tuple[int, ...]:
    return tuple(map(int, text.split(",")))


def _pair(text: str) -> Tuple[str, str]:
    name, _, value = text.partition("=")
    if not name or not value:
        raise argparse.ArgumentTypeError(f"{text!r}: expected NAME=VALUE")
    return name, value


def option_of(key: str) -> str:
    """The option of a key of ``[front.NAME]``."""
    return "--" + key.replace("_", "-")


def _dest(key: str) -> str:
    return f"setting_{key}"


def settings_with(args: argparse.Namespace, settings: Any, table: Collection[str] = ()) -> Any:
    """The settings with what the options give. Errors name a key's option, unless only the front's ``table`` has the
    key. Raises :class:`~edgeserve.errors.ConfigError`."""
    keys = entries_of(type(settings))
    given = {key: getattr(args, _dest(key), None) for key in keys}
    given = {
        key: dict(value) if schema_of(keys[key].metadata["read"]).get("type") == "object" else value
        for key, value in given.items()
        if value is not None
    }
    return with_options(settings, given, {key: option_of(key) for key in keys if key in given or key not in table})


def serve_front(args: argparse.Namespace, kind: str) -> int:
    """Serve as :func:`front_with` does; the exit status is 0 after a clean end."""
    front_with(args, kind)
    return 0


def front_with(args: argparse.Namespace, kind: str, usual: Mapping[str, Any] | None = None) -> Any:
    """Serve the front of a kind until it ends, and return it; ``usual`` are keys that hold for its command where
    neither an option nor the file's table ``[front.KIND]`` gives them."""
    log_to(sys.stderr, logging.INFO, LOG_FORMAT)
    made, settings, endpoint = configured(args, kind, usual)
    return run_front(made, settings, endpoint, kind)


def configured(
    args: argparse.Namespace, kind: str, usual: Mapping[str, Any] | None = None
) -> Tuple[Type[Front], Any, str]:
    """A front's class, its settings and the server's endpoint. Raises :class:`~edgeserve.errors.ConfigError`."""
    table: Mapping[str, Any] = {}
    endpoint, directory, key = args.endpoint, ".", ""
    if args.config:
        config = config_at(args.config)
        table, directory, endpoint = config.fronts.get(kind, {}), config.directory, endpoint or config.server.endpoint
        key = server_key_of(config, endpoint)
    made, settings = front_of(kind, {**(usual or {}), **table}, directory)
    settings = replace(settings, server_key=settings.server_key or key)
    return made, settings_with(args, settings, table), endpoint
