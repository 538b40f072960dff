"""The argument `engine=` of modules of PyTorch: as that of a call of `stepnet.RNN`, and an attribute."""

import copy
import io
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from installed_onednn import missing_onednn
from tolerance import assert_close
from zoo import rnn_of

import stepnet as sn
import stepnet.torch
from stepnet.errors import InputError, RefusedError


def recurrence(**options: Any) -> Any:
    example = torch.zeros(1, 3), torch.zeros(1, 4)
    return stepnet.torch.Recurrence(torch.nn.GRUCell(3, 4), example, **options)


MAKE: dict[str, Callable[..., Any]] = {
    "GRU": lambda **options: stepnet.torch.GRU(3, 4, **options),
    "LSTM": lambda **options: stepnet.torch.LSTM(3, 4, **options),
    "RNN": lambda **options: stepnet.torch.RNN(3, 4, **options),
    "GRUCell": lambda **options: stepnet.torch.GRUCell(3, 4, **options),
    "LSTMCell": lambda **options: stepnet.torch.LSTMCell(3, 4, **options),
    "RNNCell": lambda **options: stepnet.torch.RNNCell(3, 4, **options),
    "Recurrence": recurrence,
    "Scan": lambda **options: stepnet.torch.Scan(rnn_of("gru", 3, 4), **options),
    "PeepholeLSTM": lambda **options: stepnet.torch.ready.PeepholeLSTM(3, 4, **options),
}
WRONG = ("tpu", ["llvm", "tpu"], [], 3)


def sequences_of(name: str) -> torch.Tensor:
    return torch.linspace(-1, 1, 30).reshape((10, 3) if name.endswith("Cell") else (2, 5, 3))


def first_of(results: Any) -> torch.Tensor:
    return results[0] if isinstance(results, tuple) else results


@pytest.mark.long(each=True)
@pytest.mark.parametrize("wrong", WRONG, ids=repr)
@pytest.mark.parametrize("name", MAKE)
def test_errors_are_those_of_a_call(name: str, wrong: Any):
    with pytest.raises(InputError) as theirs:
        rnn_of("gru", 3, 4)([[1.0, 2.0, 3.0]], engine=wrong)
    module, model = MAKE[name](), torch.nn.GRU(3, 4)
    module.engine = wrong
    calls: list[Callable[[], Any]] = [
        lambda: MAKE[name](engine=wrong),
        lambda: module(sequences_of(name)),
        lambda: stepnet.torch.accelerate(model, engine=wrong),
    ]
    for call in calls:
        with pytest.raises(InputError) as ours:
            call()
        assert str(ours.value) == str(theirs.value)
    assert type(model) is torch.nn.GRU


@pytest.mark.long(every=3)
@pytest.mark.parametrize("name", MAKE)
def test_representations_show_engines_that_were_chosen(name: str):
    plain, chosen = repr(MAKE[name]()), repr(MAKE[name](engine=["onednn", "interpret"]))
    assert "engine" not in plain
    assert chosen.replace(", engine=('onednn', 'interpret')", "") == plain


@pytest.mark.long(every=2)
@pytest.mark.parametrize("name", MAKE)
def test_the_engine_is_an_attribute_that_copies_have(name: str):
    torch.manual_seed(0)
    module, x = MAKE[name](engine="interpret"), sequences_of(name)
    assert module.engine == "interpret"
    assert MAKE[name]().engine == "auto"
    assert module.state_dict().keys() == MAKE[name]().state_dict().keys()
    right = first_of(module(x))
    if name != "Scan":  # whose step is a function of a module of tests
        stored = io.BytesIO()
        torch.save(module, stored)
        stored.seek(0)
        loaded = torch.load(stored, weights_only=False)
        assert loaded.engine == pickle.loads(pickle.dumps(module)).engine == "interpret"
    twin = copy.deepcopy(module)
    assert twin.engine == "interpret"
    assert torch.equal(first_of(twin(x)), right)
    module.engine = "auto"
    assert_close(first_of(module(x)).detach().numpy(), right.detach().numpy(), 5, 16)


def test_an_acceleration_takes_its_engine_back():
    model = torch.nn.ModuleDict({"gru": torch.nn.GRU(3, 4), "cell": torch.nn.LSTMCell(3, 4)})
    before = {name: set(vars(module)) for name, module in model.items()}
    done = stepnet.torch.accelerate(model, engine=["interpret", "llvm"])
    assert [module.engine for module in done.replaced.values()] == [("interpret", "llvm")] * 2
    done.undo()
    stepnet.torch.accelerate(model).undo()
    assert {name: set(vars(module)) for name, module in model.items()} == before


def test_an_engine_that_is_asked_for_again_replaces_the_first():
    model = torch.nn.Sequential(torch.nn.GRU(3, 4), torch.nn.GRUCell(3, 4))
    first = stepnet.torch.accelerate(model, engine="llvm")
    again = stepnet.torch.accelerate(model, engine=["interpret", "llvm"])
    order = ("interpret", "llvm")
    assert [module.engine for module in model] == [order] * 2
    said = f"it is stepnet's already; its engine is now {order!r}, and was 'llvm'"
    assert again.left == {"0": said, "1": said}
    assert not again.replaced
    kept = f"it is stepnet's already, with engine={order!r}"
    assert stepnet.torch.accelerate(model).left == {"0": kept, "1": kept}
    assert [module.engine for module in model] == [order] * 2
    first.undo()
    assert [type(module) for module in model] == [torch.nn.GRU, torch.nn.GRUCell]
    assert not any("engine" in vars(module) for module in model)


@pytest.mark.skipif(missing_onednn() is not None, reason=str(missing_onednn()))
@pytest.mark.parametrize("name", ["GRU", "LSTM", "GRUCell"])
def test_a_call_with_gradients_is_refused_as_one_without(name: str):
    module, x = MAKE[name](engine="onednn").double(), sequences_of(name).double()
    with torch.no_grad(), pytest.raises(RefusedError) as without:
        module(x)
    for _ in range(2):
        with pytest.raises(
            RefusedError, match="onednn: oneDNN takes sequences and memories of float32"
        ) as made:
            module(x)
        assert str(made.value) == str(without.value)
    module.float()
    first_of(module(x.float())).sum().backward()  # gradients run on llvm
    module.engine = "auto"
    module.double()
    first_of(module(x)).sum().backward()


def test_engines_that_refuse_say_why():
    def odd(x: Any, h: Any, params: Any) -> tuple[Any, Any]:
        return h, h + x.sum(axis=-1, keepdims=True)

    scan = stepnet.torch.Scan(sn.RNN(odd, memory=4), engine="onednn")
    with torch.no_grad(), pytest.raises(RefusedError, match="onednn: "):
        scan(torch.ones(2, 5, 3))
    with pytest.raises(RefusedError, match="onednn: "):
        scan(torch.ones(2, 5, 3, requires_grad=True))
    scan.engine = "onednn", "llvm"
    scan(torch.ones(2, 5, 3, requires_grad=True))[0].sum().backward()
