"""Gradients of decays of whole models of transformers at their default initialisation: on stepnet, with
plain loops in the place of transformers' functions, and as they are, beside the same models in float64.

python transformers_decays.py FILE [MODEL ...]

It writes the distances of the three as JSON, model by model, and prints them for each parameter: norms,
relative to those of the gradients.
"""

import copy
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from operator import attrgetter
from pathlib import Path
from typing import Any

from transformers_models import FAMILIES, WORDS, in_float64, total, words

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

import decay_loops
import numpy as np
import torch
import transformers

import stepnet.torch

COMMON = {"vocab_size": WORDS, "hidden_size": 64, "num_hidden_layers": 2, "pad_token_id": 0}
HEADS = {"linear_num_key_heads": 4, "linear_num_value_heads": 16}


@dataclass(frozen=True)
class Model:
    """A family of models, and how many steps are run. path: what computes its decays, in the family's file.
    loop: the plain loop that does it too. parameters: parts of the names of those that decays depend on.
    """

    family: str
    steps: int
    path: str
    loop: Any
    parameters: tuple[str, ...]
    config: dict[str, Any]

    def made(self) -> Any:
        """The model as transformers makes it."""
        family = FAMILIES[self.family]
        torch.manual_seed(0)
        config = getattr(transformers, f"{family.name}Config")
        kind = getattr(transformers, family.model or f"{family.name}ForCausalLM")
        return kind(config(**{**COMMON, **family.config, **self.config})).train()

    @contextmanager
    def looped(self) -> Iterator[None]:
        """The loop in the place of transformers' own function."""
        file = import_module(f"transformers.models.{self.family}.modeling_{self.family}")
        place, _, name = self.path.rpartition(".")
        owner = attrgetter(place)(file) if place else file
        own = getattr(owner, name)
        setattr(owner, name, self.loop)
        try:
            yield
        finally:
            setattr(owner, name, own)

    def gradients(self, model: Any) -> dict[str, Any]:
        """The gradients of the parameters that decays depend on."""
        total(model(words(1, self.steps), use_cache=False).logits).backward()
        parameters = dict(model.named_parameters()).items()
        return {name: x.grad for name, x in parameters if any(part in name for part in self.parameters)}


DELTA = "torch_chunk_gated_delta_rule", decay_loops.delta
MODELS = {
    "Qwen3.5": Model("qwen3_5", 2048, *DELTA, ("A_log", "dt_bias", "in_proj_a"), HEADS),
    "OLMo": Model("olmo_hybrid", 512, *DELTA, ("A_log", "dt_bias", "a_proj"), HEADS),
    "Kimi": Model(
        "kimi_linear",
        512,
        "chunk_kimi_delta_attention",
        decay_loops.delta,
        ("forget_gate",),
        {"linear_num_heads": 8},
    ),
    "Mamba-2": Model(
        "mamba2",
        512,
        "mamba2_chunk_scan",
        decay_loops.mamba2,
        ("A_log", "dt_bias"),
        {"num_heads": 16, "intermediate_size": 128},
    ),
    "xLSTM": Model("xlstm", 512, "xLSTMBackend.forward", decay_loops.mlstm, ("fgate",), {}),
}


def away(title: str, model: Model) -> list[float]:
    """The errors of ours, of the loop in float32 and of transformers' own: geometric means of parameters."""
    theirs = model.made()
    ours, loop, wide = (copy.deepcopy(theirs) for _ in range(3))
    stepnet.torch.accelerate(ours)
    found = [model.gradients(ours)]
    with model.looped():
        found.append(model.gradients(loop))
        with in_float64():
            right = model.gradients(wide.double())
    found.append(model.gradients(theirs))
    assert right, f"no parameters of decays among {[name for name, _ in wide.named_parameters()]}"
    norms = {
        name: [float((each[name].double() - x).norm() / x.norm()) for each in found]
        for name, x in right.items()
    }
    for name, each in norms.items():
        print(title, name, *(f"{norm:.1e}" for norm in each))
    return np.exp(np.log(list(norms.values())).mean(0)).tolist()


def main(out: str, *names: str) -> None:
    """Writes the distances of these models, or of all."""
    torch.set_num_threads(1)
    said = {name: away(name, MODELS[name]) for name in names or MODELS}
    Path(out).write_text(json.dumps(said), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
