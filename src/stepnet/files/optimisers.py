"""What optimisers keep for each weight, in arrays that are called and laid out as the weights are.

    {"params": ..., "opt_state": {"0": {"mu": {"GRUCell_0": ...}}}, "step": 3}       Flax's TrainState
    {"state_dict": ..., "optimizer_states": [{"state": {0: {"exp_avg": ...}}}]}      PyTorch Lightning

A name alone does not say it: the layer of a learned optimiser is called `optimizer` as well. It is what an
optimiser keeps where the file has beside it what the optimiser trains, or where it begins as PyTorch's and
older Flax's do, with `state`; and what has both moments of Optax' Adam, whatever its owner calls it.

Source: flax/training/train_state.py of Flax 0.12; optax/_src/transform.py of Optax 0.2.8, ScaleByAdamState;
torch/optim/optimizer.py of PyTorch 2.13.
"""

import re
from collections.abc import Iterable

# By what the optimiser's part is called: what lies beside it that says so.
BESIDE = {
    "opt_state": frozenset({"params", "step", "model"}),
    "optimizer": frozenset({"params", "state_dict", "model_state_dict"}),
    "optimizer_states": frozenset({"params", "state_dict", "model_state_dict"}),
}
MOMENTS = frozenset({"mu", "nu"})
STATE = re.compile(r"(?:\d+[./])?state[./]")


def kept_by_optimisers(names: Iterable[str]) -> frozenset[str]:
    """Those of the names of a file's arrays that are about what an optimiser keeps.

    >>> sorted(kept_by_optimisers(["params/cell/i", "opt_state/0/mu/cell/i", "step"]))
    ['opt_state/0/mu/cell/i']
    >>> sorted(kept_by_optimisers(["model/cell/i", "adam/0/mu/cell/i", "adam/0/nu/cell/i"]))
    ['adam/0/mu/cell/i', 'adam/0/nu/cell/i']
    >>> kept_by_optimisers(["optimizer.weight_ih_l0", "head.weight"])
    frozenset()
    """
    known = list(names)
    within: dict[str, set[str]] = {}
    for name in known:
        for front, part, _ in parted(name):
            within.setdefault(front, set()).add(part)
    return frozenset(
        name
        for name in known
        if any(
            (part in BESIDE and (not BESIDE[part].isdisjoint(within[front]) or STATE.match(behind)))
            or (part in MOMENTS and within[front] >= MOMENTS)
            for front, part, behind in parted(name)
        )
    )


def parted(name: str) -> Iterable[tuple[str, str, str]]:
    """Each part of a name with what is before it and behind it."""
    for match in re.finditer(r"[^./]+", name):
        yield name[: match.start()], match[0], name[match.end() + 1 :]
