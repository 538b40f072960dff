"""The state of optimisers in a file: arrays with the names and shapes of the weights.

    {"params": ..., "opt_state": {"0": {"mu": {"GRUCell_0": ...}}}, "step": 3}       Flax's TrainState
    {"state_dict": ..., "optimizer_states": [{"state": {0: {"exp_avg": ...}}}]}      PyTorch Lightning

A name such as `optimizer` alone does not suffice, because a layer of a learned optimiser may have it. A
branch of the tree is the state of an optimiser if the weights that it trains are in a sibling branch; if it
begins with `state`, as in PyTorch and older Flax; or if it has both moments of Optax' Adam, whatever its
name.

Source: flax/training/train_state.py of Flax 0.12; optax/_src/transform.py of Optax 0.2.8, ScaleByAdamState;
torch/optim/optimizer.py of PyTorch 2.13.
"""

import re
from collections.abc import Iterable

# By the name of the optimiser's branch: names of sibling branches that confirm it.
BESIDE = {
    "opt_state": frozenset({"params", "step", "model"}),
    "optimizer": frozenset({"params", "state_dict", "model_state_dict"}),
    "optimizer_states": frozenset({"params", "state_dict", "model_state_dict"}),
}
MOMENTS = frozenset({"mu", "nu"})
STATE = re.compile(r"(?:\d+[./])?state[./]")


def optimiser_state_names(names: Iterable[str]) -> frozenset[str]:
    """Returns those of a file's array names that belong to the state of an optimiser, which has copies of
    weights and is not searched for layers.

    >>> sorted(optimiser_state_names(["params/cell/i", "opt_state/0/mu/cell/i", "step"]))
    ['opt_state/0/mu/cell/i']
    >>> sorted(optimiser_state_names(["model/cell/i", "adam/0/mu/cell/i", "adam/0/nu/cell/i"]))
    ['adam/0/mu/cell/i', 'adam/0/nu/cell/i']
    >>> optimiser_state_names(["optimizer.weight_ih_l0", "head.weight"])
    frozenset()
    """
    names_in_order = list(names)
    within: dict[str, set[str]] = {}
    for name in names_in_order:
        for front, part, _ in splits_of(name):
            within.setdefault(front, set()).add(part)
    return frozenset(
        name
        for name in names_in_order
        if any(
            (part in BESIDE and (not BESIDE[part].isdisjoint(within[front]) or STATE.match(behind)))
            or (part in MOMENTS and within[front] >= MOMENTS)
            for front, part, behind in splits_of(name)
        )
    )


def splits_of(name: str) -> Iterable[tuple[str, str, str]]:
    """Yields (text before, part, text after) for each part of an array's name, to look for parts that stand
    for the state of an optimiser. Parts are separated by points or slashes: ("0/", "mu", "cell") is the
    second of "0/mu/cell".
    """
    for match in re.finditer(r"[^./]+", name):
        yield name[: match.start()], match[0], name[match.end() + 1 :]
