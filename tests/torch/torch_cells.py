"""Cells as people write them with PyTorch."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

F: Any = torch.nn.functional


class State(NamedTuple):
    h: Any
    c: Any


class NormalisedLSTM(torch.nn.Module):
    """An LSTM with a LayerNorm of its gates and of its cell, a buffer, and an output of its own."""

    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(inputs + hidden, 4 * hidden)
        self.norm = torch.nn.LayerNorm(4 * hidden)
        self.norm_c = torch.nn.LayerNorm(hidden, bias=False)
        self.scale: torch.Tensor
        self.register_buffer("scale", torch.linspace(0.5, 1, hidden))
        self.drop = torch.nn.Dropout(0.3)

    def forward(self, x: Any, state: State) -> tuple[Any, State]:
        i, f, g, o = self.norm(self.linear(torch.cat([x, state.h], -1))).chunk(4, dim=-1)
        c = torch.sigmoid(f + 1).mul_(state.c).add_(torch.sigmoid(i) * torch.tanh(g))
        h = torch.sigmoid(o) * torch.tanh(self.norm_c(c)) * self.scale
        return {"h": self.drop(h), "gates": torch.stack([i, f], 1)}, State(h, c)


class NormalisedGRU(torch.nn.Module):
    """A GRU with a LayerNorm of what its input and of what its state give."""

    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__()
        self.inner = torch.nn.Linear(inputs, 3 * hidden, bias=False)
        self.outer = torch.nn.Linear(hidden, 3 * hidden, bias=False)
        self.norm_x = torch.nn.LayerNorm(3 * hidden, eps=1e-3)
        self.norm_h = torch.nn.LayerNorm(3 * hidden, elementwise_affine=False)

    def forward(self, x: Any, h: Any) -> Any:
        r_x, z_x, n_x = self.norm_x(self.inner(x)).chunk(3, -1)
        r_h, z_h, n_h = self.norm_h(self.outer(h)).split(h.shape[-1], dim=-1)
        z = torch.sigmoid(z_x + z_h)
        return z * h + (1 - z) * torch.tanh(n_x + torch.sigmoid(r_x + r_h) * n_h)


class MaskedGRU(torch.nn.Module):
    """A GRU with a dropout mask of its sequence on the state, and another every third step."""

    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__()
        self.cell = torch.nn.GRUCell(inputs, hidden)

    def forward(self, x: Any, state: Any, statics: Any, index: Any) -> Any:
        other = torch.where((index % 3 == 2)[:, None], statics["other"], statics["mask"])
        return self.cell(x, state * other)


class MaskedAtSteps(torch.nn.Module):
    """An LSTM whose input is masked anew at every step, and whose state stays where a step is not kept."""

    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__()
        self.cell = torch.nn.LSTMCell(inputs, hidden)

    def forward(self, x: dict[str, Any], state: tuple[Any, Any]) -> tuple[Any, Any]:
        h, c = self.cell(x["x"] * x["mask"], state)
        kept = x["kept"][:, None]
        return torch.where(kept, h, state[0]), torch.where(kept, c, state[1])


class Twice(torch.nn.Module):
    """GRU cells over one another that share weights: one of two names, and one with a tensor of another."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.below = torch.nn.GRUCell(hidden, hidden)
        self.above = self.below
        self.third = torch.nn.GRUCell(hidden, hidden, bias=False)
        self.third.weight_hh = self.below.weight_hh

    def forward(self, x: Any, state: dict[str, Any]) -> dict[str, Any]:
        below = self.below(x, state["below"])
        return {"below": below, "above": self.third(self.above(below, state["above"]), below)}


class LanguageModel(torch.nn.Module):
    """Tokens in, logarithms of probabilities out, by one table; it counts steps since the last token 0."""

    def __init__(self, words: int, hidden: int) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(words, hidden, padding_idx=0)
        self.cell = torch.nn.RNNCell(hidden, hidden)
        self.out = torch.nn.Linear(hidden, words)
        self.out.weight = self.table.weight

    def forward(self, x: Any, state: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        count = torch.where(x == 0, torch.zeros_like(state["count"]), state["count"] + 1)
        h = self.cell(self.table(x) / count.clamp(min=1)[:, None], state["h"])
        return {"logits": self.out(h).log_softmax(-1), "count": count}, {"h": h, "count": count}


class Deep(torch.nn.Module):
    """Cells of three kinds over one another, attention over their states, and layers between."""

    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__()
        self.first = torch.nn.LSTMCell(inputs, hidden)
        self.others = torch.nn.ModuleList(
            [torch.nn.GRUCell(hidden, hidden), torch.nn.RNNCell(hidden, hidden)]
        )
        self.between = torch.nn.Sequential(
            torch.nn.Linear(hidden, hidden), torch.nn.SiLU(), torch.nn.Identity()
        )
        self.bilinear = torch.nn.Bilinear(hidden, inputs, hidden)
        self.norm = torch.nn.BatchNorm1d(hidden)

    def forward(self, x: Any, state: tuple[Any, list[Any]]) -> tuple[Any, tuple[Any, list[Any]]]:
        lower = self.first(x, state[0])
        value, states = lower[0], list[Any]()
        for cell, before in zip(self.others, state[1], strict=True):
            value = self.norm(cell(self.between(value), before))
            states.append(value)
        keys = torch.stack([lower[0], *states], 1)
        weights = torch.bmm(keys, self.bilinear(value, x)[:, :, None]).softmax(1)
        return torch.einsum("btk,bto->bk", keys, weights), (lower, states)


def weight_normalised(inputs: int, hidden: int) -> Any:
    """A GRU cell whose weights are made of a direction and a length at each call."""
    return torch.nn.utils.parametrizations.weight_norm(torch.nn.GRUCell(inputs, hidden), "weight_hh")


@dataclass(frozen=True)
class Cell:
    """A cell, and examples of its input, its state and its statics."""

    module: Any
    x: Any
    state: Any
    statics: Any = None


X, H, K = torch.zeros(1, 3), torch.zeros(1, 5), torch.zeros(1, dtype=torch.int64)

CELLS: dict[str, Callable[[], Cell]] = {
    "GRUCell": lambda: Cell(torch.nn.GRUCell(3, 5), X, H),
    "GRUCell without bias": lambda: Cell(torch.nn.GRUCell(3, 5, bias=False), X, H),
    "LSTMCell": lambda: Cell(torch.nn.LSTMCell(3, 5), X, (H, H)),
    "LSTMCell without bias": lambda: Cell(torch.nn.LSTMCell(3, 5, bias=False), X, (H, H)),
    "RNNCell": lambda: Cell(torch.nn.RNNCell(3, 5), X, H),
    "RNNCell without bias": lambda: Cell(torch.nn.RNNCell(3, 5, bias=False), X, H),
    "RNNCell of relu": lambda: Cell(torch.nn.RNNCell(3, 5, nonlinearity="relu"), X, H),
    "LSTM with LayerNorm": lambda: Cell(NormalisedLSTM(3, 5), X, State(H, H)),
    "GRU with LayerNorm": lambda: Cell(NormalisedGRU(3, 5), X, H),
    "masks as statics": lambda: Cell(MaskedGRU(3, 5), X, H, {"mask": H, "other": H}),
    "masks as inputs": lambda: Cell(MaskedAtSteps(3, 5), {"x": X, "mask": X, "kept": K.bool()}, (H, H)),
    "shared weights": lambda: Cell(Twice(5), H, {"below": H, "above": H}),
    "tokens and a counter": lambda: Cell(LanguageModel(5, 4), K, {"h": torch.zeros(1, 4), "count": K}),
    "several cells": lambda: Cell(Deep(3, 5), X, ((H, H), [H, H])),
    "weights made anew": lambda: Cell(weight_normalised(3, 5), X, H),
}
