"""Small networks of torch for tests: modules, and files that torch.export and TorchScript wrote."""

from __future__ import annotations

import os
import warnings
from typing import Any, Dict, List, Tuple

import pytest
import torch


class Linear(torch.nn.Module):
    """``output[B,3] = x[B,4] @ w``, with weights 0, 0.1, 0.2, ... as in ``onnx_models.linear``."""

    def __init__(self, scale: float = 1.0) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.arange(12, dtype=torch.float32).reshape(4, 3) / 10 * scale)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.weight


class Recurrent(torch.nn.Module):
    """``output = stateN = tanh(x @ w + state)``; the state's batch axis is its second. ``rate`` is a number."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Linear()

    def forward(self, x: torch.Tensor, state: torch.Tensor, rate: int) -> Tuple[torch.Tensor, torch.Tensor]:
        new = torch.tanh(self.inner(x)[None] + state + rate / 16000)
        return new[0], new


class MaskedMean(torch.nn.Module):
    """``y[B] = sum(x * mask) / sum(mask)``: right under padding only if the mask is."""

    def forward(self, x: torch.Tensor, x_mask: torch.Tensor) -> Dict[str, torch.Tensor]:
        return {"y": (x * x_mask).sum(1) / x_mask.sum(1)}


class InPlace(torch.nn.Module):
    """Writes to its input."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.mul_(2).sum(1, keepdim=True)


class OneBuffer(torch.nn.Module):
    """Returns the same memory every time."""

    def __init__(self) -> None:
        super().__init__()
        self.memory: Any = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.memory is None or self.memory.shape != x.shape:
            self.memory = torch.empty_like(x)
        return self.memory.copy_(x * 2)


class Spread(torch.nn.Module):
    """Rows that lie in the same memory."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.new_ones(1, 3).expand(x.shape[0], 3)


class Identity(torch.nn.Module):
    """Returns its input."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x


def exported(
    directory: str, module: torch.nn.Module, inputs: Tuple[torch.Tensor, ...], largest: int = 8, name: str = "net.pt2"
) -> str:
    """Write ``module`` with torch.export, with a batch of 1 to ``largest``."""
    if tuple(map(int, torch.__version__.split(".")[:2])) < (2, 4):
        pytest.skip("exported programs need torch 2.4 or later")
    batch = torch.export.Dim("batch", min=1, max=largest)
    program = torch.export.export(module.eval(), inputs, dynamic_shapes=tuple({0: batch} for _ in inputs))
    torch.export.save(program, os.path.join(directory, name))
    return name


def scripted(directory: str, module: torch.nn.Module, name: str = "net.pt") -> str:
    """Write ``module`` as TorchScript."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        torch.jit.save(torch.jit.script(module.eval()), os.path.join(directory, name))
    return name


class Wide(torch.nn.Module):
    """256 MB of weights."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(64 * 1024, 1024))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x @ self.weight.t())[:, :1]


class Greedy(torch.nn.Module):
    """Allocates a petabyte if its input is one."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if float(x.max()) == 1.0:
            return torch.empty(1 << 48, dtype=torch.float32, device=x.device)[:1]
        return x


class Lookup(torch.nn.Module):
    """A table of ten rows: an index beyond it stops the device."""

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(10, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.table(x)


class Twice(torch.nn.Module):
    """One weight under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = Linear(), Linear()
        self.two.weight = self.one.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.one(x) + self.two(x)


class Words(torch.nn.Module):
    """Returns no tensor."""

    def forward(self, x: torch.Tensor) -> Any:
        return "words"


class Threads(torch.nn.Module):
    """Says how many threads torch uses."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.full((x.shape[0],), float(torch.get_num_threads()))


class Trained(torch.nn.Module):
    """A batch norm that was left in training: by the mean and the variance of the batch."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.batch_norm(x.reshape(-1, 2, 2), None, None, training=True)


class Dropped(torch.nn.Module):
    """Dropout that was left in."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.dropout(x, 0.5, training=True)


class Series(torch.nn.Module):
    """A recurrent network with time first, as torch's are: ``[time, batch, 4]``."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.GRU(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x)[0]


class Boxes(torch.nn.Module):
    """A detector with its list inside: the boxes of what is bright in the images of a batch, one list."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found = torch.nonzero(x.mean(1) > 0.9)
        return found.float()


class Lists(torch.nn.Module):
    """A detector as torchvision's: a list of images in, a dict of tensors out for each."""

    def forward(self, images: List[torch.Tensor]) -> List[Dict[str, torch.Tensor]]:
        return [{"boxes": image.mean(0), "scores": image.mean(0)} for image in images]


class Deep(torch.nn.Module):
    """Several layers of the usual kinds."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(4, 64),
            torch.nn.GELU(),
            torch.nn.LayerNorm(64),
            torch.nn.Linear(64, 64),
            torch.nn.Softmax(1),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


class Layout(torch.nn.Module):
    """A convolution, and whether its input and its kernels lay channels last."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Conv2d(3, 4, 3)
        torch.nn.init.constant_(self.inner.weight, 0.5)
        torch.nn.init.zeros_(self.inner.bias)

    def forward(self, x):
        last = [each.is_contiguous(memory_format=torch.channels_last) for each in (x, self.inner.weight)]
        return self.inner(x).flatten(1), torch.tensor(last, dtype=torch.float32).expand(len(x), 2)
