"""Log lines of what clients and models say."""

from __future__ import annotations

import io
import logging

from edgeserve.config.plain_text import PlainLog


def test_a_message_is_one_line_without_control_characters():
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(PlainLog("%(levelname).1s %(message)s"))
    record = logging.LogRecord("edgeserve", logging.WARNING, "", 0, "%s", ("a\nW forged \x1b[2J\u202eb",), None)
    handler.emit(record)
    assert stream.getvalue() == "W a\\nW forged \\x1b[2J\\u202eb\n"


def test_a_traceback_keeps_its_lines():
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(PlainLog("%(message)s"))
    try:
        raise ValueError("x")
    except ValueError as error:
        info = (type(error), error, error.__traceback__)
    handler.emit(logging.LogRecord("edgeserve", logging.ERROR, "", 0, "failed", (), info))
    assert stream.getvalue().startswith("failed\nTraceback") and stream.getvalue().endswith("ValueError: x\n")
