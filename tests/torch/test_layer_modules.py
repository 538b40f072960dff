"""The layers of `stepnet.torch` as modules: what is kept, copied, saved and changed."""

import copy
import io
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.func import functional_call
from torch.nn.utils import parametrizations

import stepnet.torch
from stepnet.errors import InputError
from tests.torch import torch_tools as tools
from tests.torch.layer_cases import BATCH, FORMS, HIDDEN, INPUTS, STEPS, Case, answers, assert_same, numbers

NAMES = ("GRU", "LSTM", "RNN")
OPTIONS = {"num_layers": 2, "bidirectional": True, "batch_first": True}


@pytest.mark.parametrize("name", NAMES)
def test_they_are_modules_of_torch(name: str):
    theirs, ours = Case(name, OPTIONS).modules()
    assert isinstance(ours, getattr(torch.nn, name))
    assert repr(ours) == repr(theirs)
    torch.manual_seed(0)
    ours.reset_parameters()
    torch.manual_seed(0)
    theirs.reset_parameters()
    assert all(torch.equal(a, b) for a, b in zip(ours.parameters(), theirs.parameters(), strict=True))


@pytest.mark.parametrize("name", NAMES)
def test_state_dicts_go_both_ways(name: str):
    theirs, ours = Case(name, OPTIONS).modules()
    with torch.no_grad():
        for parameter in ours.parameters():
            parameter.add_(0.25)
    assert list(ours.state_dict()) == list(theirs.state_dict())
    theirs.load_state_dict(ours.state_dict())
    assert_same(answers(ours, FORMS["padded"], []), answers(theirs, FORMS["padded"], []))


def test_a_state_dict_of_another_size_is_refused_in_the_words_of_torch():
    said = []
    for module in Case("GRU").modules():
        with pytest.raises(RuntimeError, match="size mismatch for weight_ih_l0") as caught:
            module.load_state_dict(torch.nn.GRU(INPUTS + 1, HIDDEN).state_dict())
        said.append(str(caught.value))
    assert said[0] == said[1]


def by_torch_save(module: Any) -> Any:
    saved = io.BytesIO()
    torch.save(module, saved)
    saved.seek(0)
    return torch.load(saved, weights_only=False)


@pytest.mark.long(each=True)
@pytest.mark.parametrize("copied", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m)), by_torch_save])
@pytest.mark.parametrize("name", NAMES)
def test_copies_are_modules_of_their_own(name: str, copied: Callable[[Any], Any]):
    _, module = Case(name, OPTIONS).modules()
    x = numbers(BATCH, STEPS, INPUTS)
    with torch.no_grad():
        before = module(x)[0]
        other = copied(module)
        assert torch.equal(other(x)[0], before)
        for parameter in other.parameters():
            parameter.zero_()
        assert not other(x)[0].any()
        assert torch.equal(module(x)[0], before)


def test_what_runs_it_is_not_saved():
    _, module = Case("GRU").modules()
    before = len(pickle.dumps(module))
    with torch.no_grad():
        module(numbers(STEPS, BATCH, INPUTS))
    assert len(pickle.dumps(module)) == before


# ---- parameters are never stale ----------------------------------------------------------------------------


def by_optimiser(module: Any) -> None:
    for parameter in module.parameters():
        parameter.grad = torch.ones_like(parameter)
    torch.optim.SGD(module.parameters(), 0.1, foreach=True).step()


def by_data(module: Any) -> None:
    module.weight_hh_l0.data.add_(0.1)


def by_numpy(module: Any) -> None:
    module.bias_ih_l0.detach().numpy()[0] += 0.5


def by_another_tensor(module: Any) -> None:
    module.weight_ih_l0.data = module.weight_ih_l0.data * 2


def by_a_transposed_tensor(module: Any) -> None:
    module.weight_ih_l0.data = (module.weight_ih_l0.data * 2).T.contiguous().T


def by_a_new_parameter(module: Any) -> None:
    module.weight_ih_l0 = torch.nn.Parameter(module.weight_ih_l0.detach() * 2)


def by_reset(module: Any) -> None:
    module.reset_parameters()


def by_state_dict(module: Any) -> None:
    module.load_state_dict({name: one * 2 for name, one in module.state_dict().items()})


def by_dtype(module: Any) -> None:
    module.float()


def by_parametrization(module: Any) -> None:
    parametrizations.weight_norm(module, "weight_hh_l0")
    module.parametrizations.weight_hh_l0.original0.data.mul_(2)


CHANGES = [
    by_optimiser,
    by_data,
    by_numpy,
    by_another_tensor,
    by_a_transposed_tensor,
    by_a_new_parameter,
    by_reset,
    by_state_dict,
    by_dtype,
    by_parametrization,
]


@pytest.mark.long(every=2)
@pytest.mark.parametrize("change", CHANGES)
def test_parameters_are_never_stale(change: Callable[[Any], None]):
    theirs, ours = Case("GRU", OPTIONS).modules()
    x = numbers(BATCH, STEPS, INPUTS)
    with torch.no_grad():
        before = [ours(x)[0] for _ in range(3)][-1]
    for module in (theirs, ours):
        torch.manual_seed(5)
        change(module)
    x = x.to(theirs.bias_ih_l0.dtype)
    with torch.no_grad():
        after = ours(x)[0]
        assert not torch.equal(before, after.to(before.dtype))
        assert_same({"": after}, {"": theirs(x)[0]})
    assert_same({"": ours(x)[0]}, {"": theirs(x)[0]})


def test_the_sign_of_a_zero_and_nan_are_seen():
    _, ours = Case("RNN", {"nonlinearity": "relu"}).modules()
    with torch.no_grad():
        ours.bias_ih_l0.fill_(float("nan"))
        x = numbers(STEPS, BATCH, INPUTS)
        assert ours(x)[0].isnan().all()
        assert ours(x)[0].isnan().all()
        ours.bias_ih_l0.zero_()
        assert not ours(x)[0].isnan().any()


def test_functional_call_uses_other_parameters_once():
    theirs, ours = Case("LSTM").modules()
    x, given = numbers(STEPS, BATCH, INPUTS), {}
    with torch.no_grad():
        before = ours(x)[0]
        given = {name: one * 2 for name, one in ours.named_parameters()}
        found, right = (functional_call(module, given, (x,))[0] for module in (ours, theirs))
        assert_same({"": found}, {"": right})
        assert torch.equal(ours(x)[0], before)


def test_one_module_in_many_threads():
    from concurrent.futures import ThreadPoolExecutor

    _, ours = Case("GRU", OPTIONS).modules()
    xs = [numbers(BATCH, STEPS, INPUTS) * scale for scale in range(20)]

    def call(x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            return ours(x)[0]

    right = [call(x) for x in xs]
    with ThreadPoolExecutor(4) as pool:
        for found, one in zip(pool.map(call, xs * 5), right * 5, strict=True):
            assert torch.equal(found, one)


@pytest.mark.filterwarnings("ignore")  # those of torch's compiler about itself
def test_a_layer_that_is_not_in_a_compiled_graph_runs_as_it_is():
    """torch.compile leaves out what is a torch.nn.GRU, unless allow_rnn is set (see test_graphs.py)."""
    _, ours = Case("GRU").modules()
    model = torch.nn.Sequential(torch.nn.Linear(INPUTS, INPUTS, dtype=torch.float64), ours)
    x = numbers(STEPS, BATCH, INPUTS)
    torch.compiler.reset()
    outputs, _ = torch.compile(model, backend="eager")(x)
    assert_same({"": outputs}, {"": model(x)[0]})
    outputs.sum().backward()
    assert ours.weight_hh_l0.grad.any()


class Own(torch.Tensor):
    """A class of tensors that may replace PyTorch's functions: results are of it, too."""


@pytest.mark.parametrize("name", ["GRU", "LSTMCell"])
def test_tensors_of_a_class_with_its_own_functions_run_in_torch_nn(name: str):
    torch.manual_seed(0)
    theirs, ours = (getattr(package, name)(INPUTS, HIDDEN) for package in (torch.nn, stepnet.torch))
    ours.load_state_dict(theirs.state_dict())
    x = numbers(BATCH, INPUTS, dtype=torch.float32).as_subclass(Own)
    found, right = ours(x), theirs(x)
    assert type(found[0]) is type(right[0]) is Own
    assert all(torch.equal(one, other) for one, other in zip(found, right, strict=True))
    assert type(ours(x.as_subclass(torch.Tensor))[0]) is torch.Tensor


def test_tensors_of_a_class_with_its_own_functions_run_in_a_loop_of_the_step():
    torch.manual_seed(0)
    module, x = tools.KINDS["Recurrence"].make(), torch.ones(5, 2, tools.INPUTS)
    found, right = module(x.as_subclass(Own)), module(x)
    for one, other in zip(found, right, strict=True):
        assert type(one) is Own
        assert_same({"": one.as_subclass(torch.Tensor)}, {"": other})
    scan = tools.KINDS["Scan"].make()
    with pytest.raises(InputError, match="x of a Scan has a tensor of Own, a class with functions in place"):
        scan(x.as_subclass(Own))


def test_gradients_of_each_sample_of_a_recurrence_are_those_of_torch():
    from torch.nn.utils._per_sample_grad import call_for_per_sample_grads

    torch.manual_seed(0)
    cell, made = tools.Cell(), list[dict[str, torch.Tensor]]()

    class Loop(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell = cell

        def forward(self, x: torch.Tensor) -> Any:
            h = x.new_zeros(len(x), tools.HIDDEN)
            return torch.stack([h := self.cell(one, h) for one in x.unbind(1)], 1), h

    example = torch.zeros(1, tools.INPUTS), torch.zeros(1, tools.HIDDEN)
    x = numbers(3, 5, tools.INPUTS, dtype=torch.float32)
    for module in (stepnet.torch.Recurrence(cell, example, batch_first=True), Loop()):
        call_for_per_sample_grads(module)(x)[0].square().sum().backward()
        parameters: dict[str, Any] = dict(module.named_parameters())
        made.append({name: one.grad_sample for name, one in parameters.items()})
        for one in parameters.values():
            del one.grad_sample
    assert made[0]["cell.h.weight"].shape == (3, tools.HIDDEN, tools.HIDDEN)
    assert_same(*made)
    scan = tools.KINDS["Scan"].make()
    with pytest.raises(InputError, match="a class with functions in place of PyTorch's; a Scan runs plain"):
        call_for_per_sample_grads(scan, batch_size=2)(torch.ones(5, 2, tools.INPUTS))


@pytest.mark.parametrize("name", NAMES)
def test_gradients_of_each_sample_are_those_of_torch(name: str):
    """PyTorch computes them with weights of a class of its own, which replaces functions of torch.nn."""
    from torch.nn.utils._per_sample_grad import call_for_per_sample_grads

    made = list[dict[str, torch.Tensor]]()
    for module in Case(name, {"batch_first": True}).modules():
        call_for_per_sample_grads(module)(numbers(BATCH, STEPS, INPUTS))[0].square().sum().backward()
        made.append({key: one.grad_sample for key, one in module.named_parameters()})
    assert made[0]["weight_hh_l0"].shape[0] == BATCH
    assert_same(made[1], made[0])
