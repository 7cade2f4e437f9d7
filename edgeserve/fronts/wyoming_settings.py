"""The settings of the Wyoming front: the apps by role, and how they are asked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Dict, Tuple

from edgeserve.front import FrontSettings, boolean, entry, integer, number, string, table_of, tuple_of

EXAMPLE = "127.0.0.1:10300"


@dataclass(frozen=True)
class Voice(FrontSettings):
    """``[front.wyoming]``: the apps by role, and their settings."""

    apps: Dict[str, str] = entry(table_of(string), factory=dict)  # the app of each role: wake, vad, asr, intent, tts
    languages: Tuple[str, ...] = entry(tuple_of(string), ("en",))  # that the apps understand
    wake_words: Tuple[str, ...] = entry(tuple_of(string), ())  # that may be heard; empty: any, told by the app's name
    wake_every_ms: float = entry(number(10.0), 250.0)  # between two looks for a wake word
    wake_unit: bool = entry(boolean, False)  # the wake app's floats go from -1 to 1, not to 32768
    tts_rate: int = entry(integer(1), 22_050)  # of speech whose app says no rate
    sorry: str = entry(string, "Sorry, not now.")  # said instead of a refused or failed answer
    listen: str = entry(string, EXAMPLE)  # HOST:PORT, where Home Assistant and satellites ask
    zeroconf: str = entry(string, "")  # the name under which Home Assistant finds the front; "" = none
