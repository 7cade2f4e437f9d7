"""Modules of torch drawn by a seed: some keep the items of a batch apart, others mix them; outputs of several types and
forms, by name or in order."""

from __future__ import annotations

import random
from typing import Any, Callable, Dict

import torch

Step = Callable[[Any, torch.Tensor], torch.Tensor]

APART: Dict[str, Step] = {
    "tanh": lambda module, v: torch.tanh(v),
    "scaled": lambda module, v: v * 3,
    "matmul": lambda module, v: v @ module.weights,
    "softmax": lambda module, v: v.softmax(-1),
    "centred": lambda module, v: v - v.mean(-1, keepdim=True),
    "sorted": lambda module, v: v.sort(-1).values,
    "summed up": lambda module, v: v.cumsum(-1),
    "in place": lambda module, v: v.clone().add_(1),
}
MIXING: Dict[str, Step] = {
    "softmax of the batch": lambda module, v: v.softmax(0),
    "less the batch's mean": lambda module, v: v - v.mean(0, keepdim=True),
    "backwards": lambda module, v: v.flip(0),
    "rolled": lambda module, v: v.roll(1, 0),
    "by the batch's largest": lambda module, v: v / (v.abs().max() + 1e-3),
    "summed up along the batch": lambda module, v: v.cumsum(0),
}
ENDS: Dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "as it is": lambda v: v,
    "turned": lambda v: v.t(),
    "a number": lambda v: v.sum(),
    "twice": lambda v: torch.cat([v, v]),
    "the first": lambda v: v[:1],
    "float16": lambda v: v.half(),
    "bfloat16": lambda v: v.bfloat16(),
    "whole": lambda v: (v * 100).long(),
    "signs": lambda v: v > 0,
}


class Drawn(torch.nn.Module):
    """A drawn network of inputs of four numbers."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        draw = random.Random(seed)
        steps, all_ends = {**APART, **MIXING}, [*["as it is"] * 6, *ENDS]
        self.chains = [
            [draw.choice([*(steps if draw.random() < 0.2 else APART)]) for _ in range(draw.randint(1, 4))]
            for _ in range(draw.randint(1, 3))
        ]
        self.ends = [draw.choice(all_ends) for _ in self.chains]
        self.by_name = draw.random() < 0.5
        self.weights = torch.nn.Parameter(torch.rand(4, 4, generator=torch.Generator().manual_seed(seed)) - 0.5)

    @property
    def names(self) -> Any:
        """The names of the outputs, in their order."""
        return [f"y{place}" for place in range(len(self.chains))]

    def forward(self, x: torch.Tensor) -> Any:
        found = []
        for chain, end in zip(self.chains, self.ends):
            value = x
            for step in chain:
                value = {**APART, **MIXING}[step](self, value)
            found.append(ENDS[end](value))
        if self.by_name:
            return dict(reversed(list(zip(self.names, found))))
        return tuple(found) if len(found) > 1 else found[0]
