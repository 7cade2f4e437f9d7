"""A batch's control for tests of language models: records its calls, and stops or drops when it is asked to."""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Optional

from edgeserve.engines.base import BatchControl, Result


class Recorder(BatchControl):
    """``on_emit(index, result)`` is called for each piece and end; the loop reads ``stopping`` and ``gone``."""

    def __init__(self, on_emit: Optional[Callable[[int, Result], Any]] = None) -> None:
        self.stopping = False
        self.gone: set = set()
        self.pieces: Dict[int, List[Result]] = {}
        self.ends: Dict[int, Result] = {}
        self._on_emit = on_emit

    def emit(self, index: int, result: Result) -> None:
        if result.done or result.error is not None:
            assert index not in self.ends, f"item {index} ended twice"
            self.ends[index] = result
        else:
            assert index not in self.ends, f"a piece of item {index} after its end"
            self.pieces.setdefault(index, []).append(result)
        if self._on_emit is not None:
            self._on_emit(index, result)

    @property
    def stop(self) -> bool:
        return self.stopping

    def dropped(self, index: int) -> bool:
        return index in self.gone

    def text(self, index: int) -> str:
        return "".join([piece.outputs["text"] for piece in self.pieces.get(index, [])])

    def tokens(self, index: int) -> List[int]:
        return [token for piece in self.pieces.get(index, []) for token in piece.outputs["tokens"].tolist()]
