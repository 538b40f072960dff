"""Adapters of PEFT on models and layers that stepnet runs, beside the same models as they are.

python peft_adapters.py FILE    writes as JSON what each check says: "" if it holds
"""

import copy
import json
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))
os.environ["HF_HUB_OFFLINE"] = "1"

import numpy as np
import torch
import transformers
from peft import LoraConfig, PeftModel, get_peft_model
from tolerance import assert_close

import stepnet.torch

WORDS, STEPS, WIDTH = 23, 7, 16
IDS = torch.arange(2 * STEPS).reshape(2, STEPS) % WORDS
CHECKS = dict[str, Callable[[], None]]()
"""The checks, by name."""


def check(function: Callable[[], None]) -> Callable[[], None]:
    CHECKS[function.__name__] = function
    return function


def mamba() -> Any:
    torch.manual_seed(0)
    config = transformers.MambaConfig(vocab_size=WORDS, hidden_size=WIDTH, num_hidden_layers=2, state_size=4)
    return transformers.MambaForCausalLM(config).eval()


def adapted(model: Any, **options: Any) -> Any:
    """The model with adapters whose numbers are not zero, equal for equal models."""
    torch.manual_seed(1)
    return get_peft_model(model, LoraConfig(r=2, lora_alpha=4, init_lora_weights=False, **options))


def generated(model: Any) -> Any:
    options = {
        "max_new_tokens": 5,
        "do_sample": False,
        "return_dict_in_generate": True,
        "output_logits": True,
    }
    return torch.stack(model.generate(input_ids=IDS, **options).logits)


def assert_same(ours: Any, theirs: Any) -> None:
    """The same logits, generated tokens, and gradients, None where the other has None."""
    assert_close(generated(ours).numpy(), generated(theirs).numpy(), STEPS, WIDTH)
    made = list[dict[str, Any]]()
    for model in (ours, theirs):
        model.zero_grad()
        model(input_ids=IDS, labels=IDS).loss.backward()
        made.append({name: one.grad for name, one in model.named_parameters() if one.requires_grad})
    assert made[0].keys() == made[1].keys()
    for name, one in made[0].items():
        assert (one is None) == (made[1][name] is None), name
        if one is not None:
            assert_close(one.numpy(), made[1][name].numpy(), STEPS, WIDTH)


@check
def adapters_before_accelerate() -> None:
    theirs, ours = (adapted(mamba(), target_modules=["in_proj", "x_proj"]) for _ in range(2))
    done = stepnet.torch.accelerate(ours)
    assert len(done.replaced) == 4, str(done)
    assert "single tokens run part by part, in_proj is a peft" in str(done), str(done)
    assert_same(ours, theirs)


@check
def adapters_after_accelerate_and_after_tokens() -> None:
    theirs, ours = mamba(), mamba()
    stepnet.torch.accelerate(ours)
    before = generated(ours)
    theirs, ours = (adapted(model, target_modules=["in_proj", "x_proj"]) for model in (theirs, ours))
    assert_same(ours, theirs)
    with ours.disable_adapter():
        assert_close(generated(ours).numpy(), before.numpy(), STEPS, WIDTH)
    merged = [generated(model.merge_and_unload()).numpy() for model in (ours, theirs)]
    assert_close(*merged, STEPS, WIDTH)


@check
def adapters_are_merged_and_taken_apart() -> None:
    theirs, ours = (adapted(mamba(), target_modules=["x_proj"]) for _ in range(2))
    stepnet.torch.accelerate(ours)
    for change in ("merge_adapter", "unmerge_adapter"):
        for model in (theirs, ours):
            getattr(model, change)()
        assert_close(generated(ours).numpy(), generated(theirs).numpy(), STEPS, WIDTH)


@check
def adapters_are_added_while_a_cache_is_in_use() -> None:
    """A token that ran as one step, then one through the adapters, on the states that the first left."""
    made = list[Any]()
    with torch.no_grad():
        for model in (mamba(), mamba()):
            if not made:
                stepnet.torch.accelerate(model)
            cache = model(input_ids=IDS, use_cache=True).cache_params
            model(input_ids=IDS[:, :1], cache_params=cache, use_cache=True)
            whole = adapted(model, target_modules=["in_proj"])
            made.append(whole(input_ids=IDS[:, 1:2], cache_params=cache, use_cache=True).logits.numpy())
    assert_close(*made, STEPS, WIDTH)


@check
def adapters_are_saved_and_loaded() -> None:
    from tempfile import TemporaryDirectory

    ours = adapted(mamba(), target_modules=["in_proj"])
    stepnet.torch.accelerate(ours)
    base = mamba()
    with TemporaryDirectory() as folder:
        ours.save_pretrained(folder)
        theirs = PeftModel.from_pretrained(base, folder)
    assert_close(generated(ours).numpy(), generated(theirs).numpy(), STEPS, WIDTH)


class Tagger(torch.nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.rnn, self.head = getattr(torch.nn, kind)(3, 4, 2), torch.nn.Linear(4, 2)

    def forward(self, x: Any) -> Any:
        return self.head(self.rnn(x)[0])


def weights_of_layers(kind: str, first: bool) -> None:
    """Adapters of the weights of a layer, as PEFT has them for parameters."""
    x, made = torch.linspace(-1, 1, 5 * 2 * 3).reshape(5, 2, 3), list[dict[str, Any]]()
    weights = ["rnn.weight_hh_l0", "rnn.weight_ih_l1"]
    for is_ours in (True, False):
        model: Any = Tagger(kind)
        done = stepnet.torch.accelerate(model) if is_ours and first else None
        with torch.no_grad():
            before = model(x)
        model = adapted(model, target_modules=["head"], target_parameters=weights)
        if is_ours and not first:
            done = stepnet.torch.accelerate(model)
        assert not is_ours or (done is not None and len(done.replaced) == 1), str(done)
        outputs = model(x)
        outputs.square().sum().backward()
        with torch.no_grad():
            assert torch.allclose(model(x), outputs, atol=1e-6)
            assert not torch.allclose(before, outputs, atol=1e-3)
            found = {"outputs": outputs} | {n: p.grad for n, p in model.named_parameters() if p.requires_grad}
            found["merged"] = model.merge_and_unload()(x)
        made.append(found)
    assert made[0].keys() == made[1].keys()
    for name, one in made[0].items():
        assert_close(one.detach().numpy(), made[1][name].detach().numpy(), 10, 4)


@check
def weights_of_a_gru_after_accelerate() -> None:
    weights_of_layers("GRU", first=True)


@check
def weights_of_an_lstm_before_accelerate() -> None:
    weights_of_layers("LSTM", first=False)


class Cell(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.x, self.h = torch.nn.Linear(3, 4), torch.nn.Linear(4, 4)

    def forward(self, x: Any, h: Any) -> Any:
        return torch.tanh(self.x(x) + self.h(h))


class Loop(torch.nn.Module):
    """The cell in a loop of PyTorch."""

    def __init__(self, cell: Any) -> None:
        super().__init__()
        self.cell = cell

    def forward(self, x: Any) -> Any:
        h, outputs = x.new_zeros(x.shape[1], 4), list[Any]()
        for one in x:
            outputs.append(h := self.cell(one, h))
        return torch.stack(outputs), h


class Around(torch.nn.Module):
    def __init__(self, rnn: Any) -> None:
        super().__init__()
        self.rnn = rnn

    def forward(self, x: Any) -> Any:
        return self.rnn(x)[0]


def recurrence(cell: Any) -> Any:
    return stepnet.torch.Recurrence(cell, (torch.zeros(1, 3), torch.zeros(1, 4)))


@check
def linear_layers_in_the_cell_of_a_recurrence() -> None:
    x, made = torch.linspace(-1, 1, 5 * 2 * 3).reshape(5, 2, 3), list[dict[str, Any]]()
    for kind in (recurrence, Loop):
        torch.manual_seed(0)
        model: Any = Around(kind(Cell()))
        before = model(x)
        model = adapted(model, target_modules=["x", "h"])
        outputs = model(x)
        outputs.square().sum().backward()
        assert not torch.allclose(before, outputs, atol=1e-3)
        found = {"outputs": outputs} | {n: p.grad for n, p in model.named_parameters() if p.requires_grad}
        with model.disable_adapter():
            assert torch.equal(model(x), before)
        found["merged"] = model.merge_and_unload()(x)
        made.append(found)
    assert made[0].keys() == made[1].keys()
    for name, one in made[0].items():
        assert_close(one.detach().numpy(), made[1][name].detach().numpy(), 10, 4)


@check
def weights_of_a_recurrence_and_of_a_scan_are_refused() -> None:
    params = {"W": np.zeros((3, 4), "float32"), "R": np.zeros((4, 4), "float32")}

    def step(x: Any, h: Any, params: Any) -> Any:
        h = np.tanh(x @ params["W"] + h @ params["R"])
        return h, h

    scan = stepnet.torch.Scan(stepnet.RNN(step, params, memory=4), batch_first=False)
    for rnn, weight, words in (
        (recurrence(Cell()), "rnn.cell.x.weight", "a step cannot turn gradients off or on for a part of it"),
        (scan, "rnn.params.W", "the parameters of a Scan or a Recurrence are a ParamWrapper"),
    ):
        try:
            adapted(Around(rnn), target_parameters=[weight])(torch.ones(5, 2, 3))
            said = "nothing was raised"
        except RuntimeError as error:
            said = str(error)
        assert words in said, said


@check
def a_whole_layer_is_refused_by_peft() -> None:
    """PEFT has adapters of some classes of torch.nn, and says so of a recurrent one, of stepnet's too."""
    said = list[str]()
    for is_ours in (True, False):
        model = Tagger("LSTM")
        if is_ours:
            stepnet.torch.accelerate(model)
        try:
            adapted(model, target_modules=["rnn"])
        except ValueError as error:
            said.append(str(error))
    assert len(said) == 2, said
    assert said[0] == said[1]


@check
def copies_of_adapted_models() -> None:
    ours = adapted(mamba(), target_modules=["in_proj"])
    stepnet.torch.accelerate(ours)
    right = generated(ours)
    assert torch.equal(generated(copy.deepcopy(ours)), right)


def main() -> None:
    said = dict[str, str]()
    for name, function in CHECKS.items():
        try:
            function()
            said[name] = ""
        except Exception:
            said[name] = traceback.format_exc()
    Path(sys.argv[1]).write_text(json.dumps(said), encoding="utf-8")


if __name__ == "__main__":
    main()
