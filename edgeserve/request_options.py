"""The options of a request beside its app and its inputs: keyword arguments that all ways to send one share."""

from __future__ import annotations

import re
from typing import Any, Dict, Mapping, Optional, TypedDict

from edgeserve.errors import nearest


class RequestOptions(TypedDict, total=False):
    """An option that is left out, or None, is as the app's configuration says."""

    slo_ms: Optional[float]  # the deadline, from now
    priority_class: Optional[str]  # "critical", "normal" or "background"
    value: Optional[float]  # from 0: what the answer is worth, times the app's own value
    stream: Optional[str]  # the stream that the request belongs to, where the app keeps streams
    reset: Optional[bool]  # whether the stream begins anew with this request: what it left behind is forgotten
    on_late: Optional[str]  # "drop", "answer" or "partial"
    hints: Optional[Mapping[str, float]]  # what is known of the work ahead of time, for the app's policy
    quality_min: Optional[float]  # 0 to 1: the least quality of an ensemble's answer that is of use
    traceparent: Optional[str]  # W3C: the span of the caller's that the request's span is put below


TRACEPARENT = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}\Z")
"""W3C Trace Context, ``traceparent``: version, trace, span, flags."""

OPTIONS = tuple(RequestOptions.__annotations__)


def given(options: Mapping[str, Any]) -> Dict[str, Any]:
    """The options that are not None. Raises ``TypeError`` for a name that is no option."""
    for name in options:
        if name not in OPTIONS:
            raise TypeError(f"{name!r} is no option of a request{nearest(name, OPTIONS)}")
    return {name: value for name, value in options.items() if value is not None}
