"""Models of ``transformers`` with an encoder and a decoder (T5, BART and their kin), one lane's session on torch.

The encoder reads a source once. From what it says, each layer of the decoder keeps keys and values of the source
(*cross attention*), beside those of the answer so far.
"""

from __future__ import annotations

import threading
from typing import Any, Dict, List, Sequence, Tuple

import torch
import transformers

from edgeserve.engines.base import LaneInfo
from edgeserve.engines.lm.backend import Encoder, EncoderPrompt, TokenRow
from edgeserve.engines.lm.sampling import Scores
from edgeserve.engines.lm.transformers_rows import TorchRows, TorchSession
from edgeserve.errors import EngineError


def encoder_facts(network: Any, source_tokens: int, model: str) -> Encoder:
    """The tokens with which the decoder of a saved model begins."""
    settings = network.generation_config
    begin = settings.decoder_start_token_id
    begin = network.config.decoder_start_token_id if begin is None else begin
    if begin is None:
        raise EngineError(
            f"model {model!r}: neither config.json nor generation_config.json says decoder_start_token_id, the token "
            "with which the decoder begins; add it there"
        )
    forced = settings.forced_bos_token_id
    return Encoder(source_tokens, (int(begin),) if forced is None else (int(begin), int(forced)))


def decoder_bytes(config: Any, item_bytes: int) -> int:
    """The bytes that a token of an answer or of a source keeps in memory: keys and values of every layer of the
    decoder."""
    layers = getattr(config, "num_decoder_layers", None) or config.decoder_layers
    heads = getattr(config, "num_heads", None) or config.decoder_attention_heads
    size = getattr(config, "d_kv", None) or config.d_model // heads
    return 2 * int(layers) * int(heads) * int(size) * item_bytes


class _Positions(torch.nn.Module):  # type: ignore[misc]
    """Stands for a decoder's table of positions: each row of a run has its own, as the running thread set them. The
    library would count them from the longest row."""

    def __init__(self, table: Any) -> None:
        super().__init__()
        self.table = table
        self.running = threading.local()

    def forward(self, *given: Any, **named: Any) -> Any:
        positions = getattr(self.running, "positions", None)
        if positions is None:
            return self.table(*given, **named)
        return torch.nn.Embedding.forward(self.table, positions + getattr(self.table, "offset", 0))


def with_own_positions(network: Any) -> Any:
    """Make rows of different lengths possible in one run, where the decoder has a table of positions. The model."""
    decoder = network.get_decoder()
    if isinstance(getattr(decoder, "embed_positions", None), torch.nn.Embedding):
        decoder.embed_positions = _Positions(decoder.embed_positions)
    return network


class EncoderDecoderSession(TorchSession):
    """One lane's sequences."""

    def __init__(
        self, model: str, network: Any, lane: LaneInfo, device: torch.device, threads: int, slots: int
    ) -> None:
        super().__init__(model, network, lane, device, threads, slots)
        self._said: Dict[int, Any] = {}  # slot -> what the encoder said, until the decoder's first run
        self._crossed, self._rows = TorchRows(left=False), TorchRows(left=True)
        self._positions = getattr(network.get_decoder(), "embed_positions", None)
        is_relative = any(name.endswith("relative_attention_bias") for name, _ in network.get_decoder().named_modules())
        self._any_lengths = isinstance(self._positions, _Positions) or is_relative

    def encode(self, sources: Sequence[EncoderPrompt]) -> None:
        longest = max([len(source.tokens) for source in sources])
        with self._on_stream(), self._step(len(sources)):
            tokens = torch.zeros((len(sources), longest), dtype=torch.long, device=self._device)
            mask = torch.zeros_like(tokens)
            for place, source in enumerate(sources):
                self._forget(source.slot)
                tokens[place, : len(source.tokens)] = torch.tensor(list(source.tokens), device=self._device)
                mask[place, : len(source.tokens)] = 1
            said = self._network.get_encoder()(input_ids=tokens, attention_mask=mask)
            for source, row in zip(sources, said.last_hidden_state):
                self._said[source.slot] = row[: len(source.tokens)].clone()

    def _group_of(self, row: TokenRow) -> Any:
        return 0 if self._any_lengths else row.start

    def _forget(self, slot: int) -> None:
        self._said.pop(slot, None)
        self._crossed.free(slot)
        self._rows.free(slot)

    def close(self) -> None:
        self._said = {}
        self._crossed.clear()
        self._rows.clear()

    def _run(self, rows: List[TokenRow]) -> List[Scores]:
        slots = [row.slot for row in rows]
        try:
            with self._step(len(rows)):
                scores, sources = self._said_by_decoder(rows, slots)
        except EngineError:
            self._rows.lose()
            self._crossed.lose()
            raise
        self._rows.grown([row.start + len(row.tokens) for row in rows])
        self._crossed.grown(sources)
        for slot in slots:
            self._said.pop(slot, None)
        return scores

    def _said_by_decoder(self, rows: Sequence[TokenRow], slots: List[int]) -> Tuple[List[Scores], List[int]]:
        """The scores, and the lengths of the sources."""
        count = len(rows[0].tokens)
        self._rows.gather(slots)
        self._crossed.gather(slots)
        said, sources = self._said_to(slots)
        if isinstance(self._positions, _Positions):
            first = torch.tensor([row.start for row in rows], device=self._device)
            self._positions.running.positions = first[:, None] + torch.arange(count, device=self._device)[None, :]
        try:
            found = self._network(
                encoder_outputs=(said,),
                attention_mask=(torch.arange(said.shape[1], device=self._device) < sources[:, None]).long(),
                decoder_input_ids=torch.tensor([list(row.tokens) for row in rows], device=self._device),
                decoder_attention_mask=self._rows.mask(slots, count, self._device),
                use_cache=True,
                **{self._cache_name: transformers.EncoderDecoderCache(self._rows.cache, self._crossed.cache)},
            )
        finally:
            if isinstance(self._positions, _Positions):
                self._positions.running.positions = None
        return self._read(found.logits, rows), sources.tolist()

    def _said_to(self, slots: Sequence[int]) -> Tuple[Any, Any]:
        """The encoder's outputs, ``[rows, tokens, size]``, and the number of tokens of each source. Where the decoder
        has its keys and values of it already, only the shape counts."""
        if slots[0] in self._said:
            rows = [self._said[slot] for slot in slots]
            lengths = torch.tensor([len(row) for row in rows], device=self._device)
            return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True), lengths
        lengths = torch.tensor([self._crossed.lengths[slot] for slot in slots], device=self._device)
        shape = (len(slots), int(lengths.max()), self._network.config.hidden_size)
        return torch.zeros((1, 1, 1), dtype=self._network.dtype, device=self._device).expand(shape), lengths
