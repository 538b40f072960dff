"""The right results of a step written with PyTorch: by PyTorch, step by step, one sequence at a time."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from tolerance import assert_close

import stepnet as sn
from stepnet.compiler.values import leaves, named_leaves, transform

LENGTHS = (3, 0, 1, 4)


def numbers(shape: tuple[int, ...], seed: int, dtype: Any = torch.float64) -> Any:
    """Random numbers: floats from -1 to 1, integers from 0 to 4, booleans."""
    random = np.random.default_rng(seed)
    if dtype == torch.bool:
        return torch.from_numpy(random.random(shape) < 0.5)
    if not dtype.is_floating_point:
        return torch.from_numpy(random.integers(0, 5, shape)).to(dtype)
    return torch.from_numpy(random.uniform(-1, 1, shape)).to(dtype)


def drawn(example: Any, count: int, seed: int) -> Any:
    """So many rows of random numbers, in the structure of an example and of its shapes and dtypes."""
    seeds = iter(range(1000 * seed, 1000 * seed + 1000))
    return transform(lambda leaf: numbers((count, *leaf.shape[1:]), next(seeds), leaf.dtype), example)


def arrays(structure: Any) -> Any:
    """The structure with arrays for tensors."""
    return transform(lambda tensor: tensor.numpy(), structure)


def ragged(sequences: list[Any]) -> Any:
    """Structures of tensors [time, ...], one per sequence, as one structure of Raggeds."""
    parts = [[leaf.numpy() for leaf in leaves(sequence)] for sequence in sequences]
    joined = iter([sn.Ragged.from_list(list(part)) for part in zip(*parts, strict=True)])
    return transform(lambda _: next(joined), sequences[0])


def wide(structure: Any) -> Any:
    """The structure with its floats in float64."""
    return transform(lambda leaf: leaf.double() if leaf.is_floating_point() else leaf, structure)


def rows(structure: Any) -> list[Any]:
    """The structure of each row alone."""
    count = len(leaves(structure)[0])
    return [transform(lambda leaf, at=at: leaf[at : at + 1].clone(), structure) for at in range(count)]


def stepped(
    step: Callable[..., Any],
    sequences: list[Any],
    memories: list[Any],
    params: Any = None,
    statics: list[Any] | None = None,
    index: bool = False,
) -> tuple[list[list[Any]], list[Any]]:
    """Per sequence the output of each step, and the last memory: PyTorch on one row at a time."""
    outputs: list[list[Any]] = []
    finals: list[Any] = []
    with torch.no_grad():
        for place, (sequence, memory) in enumerate(zip(sequences, memories, strict=True)):
            found: list[Any] = []
            for at, x in enumerate(rows(sequence)):
                given = {} if statics is None else {"statics": statics[place]}
                given |= {"index": torch.tensor([at])} if index else {}
                output, memory = step(x, memory, params, **given)
                found.append(output)
            outputs.append(found)
            finals.append(memory)
    return outputs, finals


def agree(outputs: Any, expected: list[list[Any]], width: int = 8, dtypes: bool = True) -> None:
    """Asserts that Raggeds of outputs are what was expected step by step, and of its dtypes."""
    for place, (name, output) in enumerate(named_leaves(outputs)):
        assert sum(map(len, expected)) == len(output.values)
        for sequence, steps in zip(output.to_list(), expected, strict=True):
            assert len(sequence) == len(steps), name
            for found, right in zip(sequence, steps, strict=True):
                tensor = leaves(right)[place]
                assert not dtypes or str(tensor.dtype) == f"torch.{output.dtype}", name
                assert_close(found, tensor[0].detach(), len(steps), width, dtype=output.dtype)


def agree_at_the_end(final: Any, expected: list[Any], width: int = 8) -> None:
    """Asserts that last memories are what was expected of each sequence."""
    for place, array in enumerate(leaves(final)):
        right = torch.cat([leaves(one)[place] for one in expected]).detach()
        assert_close(array, right, max(LENGTHS), width)
