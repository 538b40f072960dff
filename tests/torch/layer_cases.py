"""Modules of torch.nn and ours with the same numbers, what they are given, and what they answer."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from tolerance import assert_close
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence

import stepnet.torch

INPUTS, HIDDEN, STEPS, BATCH = 3, 4, 6, 5
LENGTHS = (3, 6, 1, 6, 2)
DTYPES = (torch.float64, torch.float32)

OPTIONS: dict[str, tuple[Any, ...]] = {
    "kind": (
        ("GRU", {}),
        ("LSTM", {}),
        ("LSTM", {"proj_size": 2}),
        ("RNN", {}),
        ("RNN", {"nonlinearity": "relu"}),
    ),
    "num_layers": (1, 3),
    "bias": (True, False),
    "batch_first": (False, True),
    "bidirectional": (False, True),
    "dropout": (0.0, 0.4),
    "dtype": DTYPES,
    "states": (True, False),
}


@dataclass(frozen=True)
class Case:
    """A module of torch.nn and the same of ours."""

    name: str
    options: dict[str, Any] = field(default_factory=dict[str, Any])
    dtype: torch.dtype = torch.float64

    def modules(self) -> tuple[Any, Any]:
        """Theirs and ours with the same parameters."""
        torch.manual_seed(7)
        made = [
            getattr(package, self.name)(INPUTS, HIDDEN, dtype=self.dtype, **self.options)
            for package in (torch.nn, stepnet.torch)
        ]
        made[1].load_state_dict(made[0].state_dict())
        return made[0], made[1]

    def states(self, module: Any, batch: int | None = BATCH) -> list[torch.Tensor]:
        """h, and c for an LSTM."""
        count = module.num_layers * (2 if module.bidirectional else 1)
        lead = (count,) if batch is None else (count, batch)
        features = [module.proj_size or HIDDEN, *([HIDDEN] if self.name == "LSTM" else [])]
        return [numbers(*lead, one, dtype=self.dtype) for one in features]


def numbers(*shape: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    random = np.random.default_rng(sum(shape))
    return torch.from_numpy(random.uniform(-1, 1, shape)).to(dtype)


def in_form(states: list[torch.Tensor]) -> Any:
    """States as a module takes them."""
    return None if not states else states[0] if len(states) == 1 else tuple(states)


def padded(x: torch.Tensor, module: Any) -> Any:
    return x.transpose(0, 1).contiguous() if module.batch_first else x


def packed(x: torch.Tensor, module: Any) -> Any:
    return pack_padded_sequence(x, torch.tensor(LENGTHS), enforce_sorted=False)


def packed_in_order(x: torch.Tensor, module: Any) -> Any:
    return pack_padded_sequence(x, torch.tensor(sorted(LENGTHS, reverse=True)))


def strided(x: torch.Tensor, module: Any) -> Any:
    """Neither contiguous nor a transposed view of what is."""
    wide = padded(x, module).repeat_interleave(2, -1)
    return wide[..., ::2]


FORMS: dict[str, Callable[[torch.Tensor, Any], Any]] = {
    "padded": padded,
    "packed": packed,
    "packed in order": packed_in_order,
    "strided": strided,
}


def tensors(value: Any) -> list[torch.Tensor]:
    """All tensors of an answer."""
    if isinstance(value, PackedSequence):
        return [value.data]
    return [value] if isinstance(value, torch.Tensor) else [leaf for one in value for leaf in tensors(one)]


def answers(
    module: Any, form: Callable[[torch.Tensor, Any], Any], states: list[torch.Tensor], seed: int = 3
) -> Any:
    """The results of a module, and the gradients of all that it is given, by name."""
    x = numbers(STEPS, BATCH, INPUTS, dtype=next(module.parameters()).dtype).requires_grad_()
    own = [one.clone().requires_grad_() for one in states]
    torch.manual_seed(seed)
    results = tensors(module(form(x, module), in_form(own)))
    weights = [numbers(*one.shape, dtype=one.dtype) for one in results]
    module.zero_grad()
    sum((a * b).sum() for a, b in zip(results, weights, strict=True)).backward()  # type: ignore[union-attr]
    gradients = {"x": x.grad} | {f"state {place}": one.grad for place, one in enumerate(own)}
    gradients |= {name: one.grad for name, one in module.named_parameters()}
    return {f"result {place}": one for place, one in enumerate(results)} | gradients


def assert_same(found: dict[str, Any], right: dict[str, Any]) -> None:
    assert found.keys() == right.keys()
    for name, one in found.items():
        assert (one is None) == (right[name] is None), name
        if one is not None:
            assert_close(one.detach().numpy(), right[name].detach().numpy(), STEPS * BATCH, HIDDEN)
