"""Calls of layers with gradients whose kind came before: results and gradients are those of torch.nn."""

import copy
import subprocess
import sys
from typing import Any

import pytest
from tolerance import assert_close

torch = pytest.importorskip("torch")
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

import stepnet.torch as st  # noqa: E402
from stepnet.errors import InputError  # noqa: E402

KNOWN, MOST_KINDS = "_known_calls", 16

LAYERS = {
    "GRU": {},
    "LSTM": {"num_layers": 2, "bidirectional": True},
    "RNN": {"bias": False, "batch_first": True},
}


def pair(kind: str) -> tuple[Any, Any]:
    """A layer of stepnet and one of torch.nn with the same parameters."""
    torch.manual_seed(0)
    ours = getattr(st, kind)(5, 6, dtype=torch.float64, **LAYERS[kind])
    theirs = getattr(torch.nn, kind)(5, 6, dtype=torch.float64, **LAYERS[kind])
    theirs.load_state_dict(ours.state_dict())
    return ours, theirs


def is_known(layer: Any, *arguments: Any) -> bool:
    """Tells whether a call of a layer is of a known kind: the others are checked by a method of torch.nn."""
    checked = list[Any]()
    layer.check_input = layer.check_forward_args = lambda *given: checked.append(given)
    layer(*arguments)
    del layer.check_input, layer.check_forward_args
    return not checked


@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.parametrize("part", ["outputs", "states"])
def test_gradients_of_known_calls_are_those_of_torch(kind: str, part: str) -> None:
    """With and without gradients of the data; a result that gets no cotangent; parameters that change."""
    ours, theirs = pair(kind)
    for wanted in (False, True):
        for _ in range(3):
            made = list[list[Any]]()
            x = torch.randn(3, 4, 5, dtype=torch.float64)
            for layer in (ours, theirs):
                layer.zero_grad()
                data = x.clone().requires_grad_(wanted)
                outputs, states = layer(data)
                states = states if kind == "LSTM" else (states,)
                chosen = outputs if part == "outputs" else torch.stack([*states]).sin()
                chosen.square().sum().backward()
                with torch.no_grad():
                    for parameter in layer.parameters():
                        parameter -= 0.1 * parameter.grad
                made.append([outputs, *states, *[p.grad for p in layer.parameters()], *[data.grad] * wanted])
            torch.testing.assert_close(*made, atol=1e-12, rtol=1e-10)
        data = torch.ones(3, 4, 5, dtype=torch.float64, requires_grad=wanted)
        assert is_known(ours, data)


def test_second_derivatives_and_batched_cotangents_of_known_calls() -> None:
    ours, _ = pair("GRU")
    x = torch.randn(3, 2, 5, dtype=torch.float64, requires_grad=True)
    ours(x)
    weights = list(ours.parameters())[:1]
    call = lambda x, *_: ours(x)[0]  # noqa: E731
    assert torch.autograd.gradgradcheck(call, (x, *weights), atol=1e-6)
    outputs = ours(x)[0]
    cotangents = torch.randn(3, *outputs.shape, dtype=torch.float64)
    (several,) = torch.autograd.grad(outputs, x, cotangents, retain_graph=True, is_grads_batched=True)
    each = [torch.autograd.grad(outputs, x, own, retain_graph=True)[0] for own in cotangents]
    torch.testing.assert_close(several, torch.stack(each))


def test_what_a_known_call_depends_on_makes_another_kind() -> None:
    """Sizes, dropout, engines, parameters in other places, and tools that see operations."""
    ours, _ = pair("GRU")
    x = torch.randn(3, 4, 5, dtype=torch.float64)
    assert not is_known(ours, x)
    assert is_known(ours, x.clone())
    assert not is_known(ours, x[:2])
    assert not is_known(ours, x, torch.zeros(1, 4, 6, dtype=torch.float64))
    with torch.no_grad():
        assert not is_known(ours, x)
    ours.checkpoint = 2
    assert not is_known(ours, x)
    weights = {name: 2 * value.detach() for name, value in ours.named_parameters()}
    doubled, theirs = torch.func.functional_call(ours, weights, (x,))[0], pair("GRU")[1]
    torch.testing.assert_close(doubled, torch.func.functional_call(theirs, weights, (x,))[0])


@pytest.mark.parametrize("kind", LAYERS)
def test_calls_on_the_memory_of_tensors_have_the_bits_of_the_first(kind: str) -> None:
    """From the third call on; of data, a parameter and cotangents with gaps, and on several addresses."""
    ours, theirs = pair(kind)
    with torch.no_grad():
        for layer in (ours, theirs):
            layer.weight_hh_l0.data = layer.weight_hh_l0.data.t().contiguous().t()
    numbers, kept = torch.randn(4, 3, 5, dtype=torch.float64), list[Any]()
    found = list[list[Any]]()
    for layer in (*[ours] * 6, theirs):
        layer.zero_grad()
        x = numbers.clone().transpose(0, 1).requires_grad_()
        outputs, states = layer(x)
        states = states if kind == "LSTM" else (states,)
        (outputs.mT.square().mT.sum() + sum(state.mT.sin().sum() for state in states)).backward()
        gradients = [x.grad, *[parameter.grad for parameter in layer.parameters()]]
        kept.append(gradients)  # memory of its own for the gradients of each call
        found.append([each.clone() for each in (outputs, *states, *gradients)])
    assert all(map(torch.equal, found[0], found[5]))
    assert all(map(torch.equal, found[2][-len(kept[2]) :], kept[2]))
    torch.testing.assert_close(found[5], found[6], atol=1e-12, rtol=1e-10)


def test_known_calls_where_another_device_is_the_default() -> None:
    ours, theirs = pair("LSTM")
    x = torch.randn(3, 4, 5, dtype=torch.float64)
    with torch.device("meta"):
        for _ in range(4):
            results = [layer(x)[0] for layer in (ours, theirs)]
            torch.testing.assert_close(*results, atol=1e-12, rtol=1e-10)
            results[0].sum().backward()


def test_the_first_call_saves_what_later_ones_save() -> None:
    """Activation checkpointing runs the forward pass again, and compares the tensors that it saves."""
    ours, theirs = pair("GRU")
    for _ in range(4):
        x = torch.randn(3, 4, 5, dtype=torch.float64)
        for layer in (ours, theirs):
            layer.zero_grad()
            checkpoint(layer, x, use_reentrant=False)[0].square().sum().backward()
        torch.testing.assert_close(
            [p.grad for p in ours.parameters()], [p.grad for p in theirs.parameters()], atol=1e-12, rtol=1e-10
        )


def test_kinds_are_bounded_and_not_copied() -> None:
    ours, _ = pair("GRU")
    for steps in range(1, MOST_KINDS + 3):
        ours(torch.zeros(steps, 1, 5, dtype=torch.float64))
    assert len(ours.__dict__[KNOWN]) == 2
    assert KNOWN not in copy.deepcopy(ours).__dict__


@pytest.mark.parametrize("calls", [1, 4])
@pytest.mark.parametrize("kind", ["GRU", "GRUCell"])
def test_hooks_on_saved_tensors_give_back_their_shapes_and_dtypes(kind: str, calls: int) -> None:
    """Machine code reads the memory of saved tensors: other sizes would be read beyond their ends."""
    layer, x = getattr(st, kind)(5, 6), torch.randn(3, 4, 5)
    x = x if kind == "GRU" else x[0]
    shapes = {x.shape, *[parameter.shape for parameter in layer.parameters()]}
    for changed in (lambda t: t, lambda t: t[:0], lambda t: t.double()):
        layer.zero_grad()

        def unpack(t: Any, changed: Any = changed) -> Any:
            """Changes tensors that the layer made."""
            return t if t.shape in shapes else changed(t)

        for _ in range(calls):
            with torch.autograd.graph.saved_tensors_hooks(lambda t: t, unpack):
                outputs = layer(x)[0]
            if changed(torch.zeros(1)).nbytes == 4:
                outputs.sum().backward()
                continue
            with pytest.raises(InputError, match="a hook on saved tensors gives a tensor of shape"):
                outputs.sum().backward()


@pytest.mark.parametrize("saved", [None, "bfloat16"])
@pytest.mark.parametrize("kind", ["GRU", "LSTM"])
def test_what_is_saved_besides_is_one_tensor_that_hooks_may_cast(kind: str, saved: str | None) -> None:
    """Of numbers of floating point, also where they are computed in another precision than they are saved."""
    layer, x = getattr(st, kind)(5, 6, saved=saved), torch.randn(3, 4, 5)
    theirs, weights = getattr(torch.nn, kind)(5, 6, dtype=torch.float64), [*layer.parameters()]
    theirs.load_state_dict(layer.state_dict())
    right = torch.autograd.grad(theirs(x.double())[0].square().sum(), [*theirs.parameters()])
    for _ in range(4):
        packed = list[Any]()

        def pack(t: Any, packed: list[Any] = packed) -> Any:
            """Stores a tensor in half precision, as users do to save memory."""
            packed.append(t)
            return t.bfloat16() if t.is_floating_point() else t

        with torch.autograd.graph.saved_tensors_hooks(
            pack, lambda t: t.float() if t.element_size() == 2 else t
        ):
            layer(x)
        mine = [t for t in packed if all(t.shape != each.shape for each in (x, *weights))]
        kinds = [(t.dim(), t.dtype) for t in mine if t.shape != (3, 4, 6)]
        assert kinds == [(1, getattr(torch, saved or "float32"))]
        own = torch.autograd.grad(layer(x)[0].square().sum(), weights)
        for one, exact in zip(own, right, strict=True):
            assert_close(one, exact, *x.shape[:2], dtype=saved or "float32")
        if saved is not None:
            continue
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t.float()):
            outputs = layer(x)[0]
        cast = torch.autograd.grad(outputs.square().sum(), weights)
        for one, exact in zip(cast, right, strict=True):
            assert_close(one, exact, *x.shape[:2], dtype="bfloat16")
        assert not all(map(torch.equal, cast, own))


@pytest.mark.parametrize("rows", [4, 400])
def test_what_hooks_see_between_values_are_zeros(rows: int) -> None:
    """And not what was in the memory before, by which a hash or a search for NaN would differ."""
    layer, x, seen = st.LSTM(5, 6), torch.randn(3, rows, 5), list[Any]()
    torch.use_deterministic_algorithms(True)  # fills new memory with NaN
    try:
        for _ in range(3):
            with torch.autograd.graph.saved_tensors_hooks(lambda t: seen.append(t.clone()) or t, lambda t: t):
                layer(x)
    finally:
        torch.use_deterministic_algorithms(False)
    assert len(seen) == 18
    assert all(torch.isfinite(each).all() for each in seen)


@pytest.mark.parametrize("wanted", [True, False])
def test_numbers_whose_memory_has_another_sign(wanted: bool) -> None:
    """Parts of complex conjugates: PyTorch negates them when it reads them, as inputs and as cotangents."""
    ours, theirs = (layers.GRU(1, 1, dtype=torch.float64) for layers in (st, torch.nn))
    theirs.load_state_dict(ours.state_dict())
    data, weight = torch.tensor([[[2j]]], dtype=torch.complex128), torch.tensor(1 + 2j)
    for _ in range(4):
        made = list[list[Any]]()
        for layer in (ours, theirs):
            layer.zero_grad()
            x = data.conj().imag
            assert x.is_neg()
            with torch.set_grad_enabled(wanted):
                outputs, _ = layer(x)
            if wanted:
                (torch.complex(torch.ones_like(outputs), outputs).conj() * weight).real.sum().backward()
            made.append([outputs.detach(), *[p.grad for p in layer.parameters() if wanted]])
        torch.testing.assert_close(*made, atol=1e-12, rtol=1e-10)


@pytest.mark.parametrize("wanted", [True, False])
def test_zeros_that_have_no_memory(wanted: bool) -> None:
    """PyTorch has such tensors for derivatives that are zero: as inputs and as cotangents."""
    ours, theirs = (layers.GRU(2, 3, dtype=torch.float64) for layers in (st, torch.nn))
    theirs.load_state_dict(ours.state_dict())
    for _ in range(4):
        made = list[list[Any]]()
        for layer in (ours, theirs):
            layer.zero_grad()
            with torch.set_grad_enabled(wanted):
                outputs, last = layer(torch._efficientzerotensor((2, 1, 2), dtype=torch.float64))
            if wanted:
                zeros = torch._efficientzerotensor(outputs.shape, dtype=torch.float64)
                torch.autograd.backward([outputs, last], [zeros, torch.ones_like(last)])
            made.append([outputs.detach(), *[p.grad for p in layer.parameters() if wanted]])
        torch.testing.assert_close(*made, atol=1e-12, rtol=1e-10)


@pytest.mark.parametrize("mode", ["training", "inference", "between"])
@pytest.mark.parametrize("kind", ["GRU", "LSTMCell"])
def test_freed_storages_are_refused(kind: str, mode: str) -> None:
    """As PyTorch gives an address for a part of a freed storage: the offset of the part alone."""
    layer, x = getattr(st, kind)(5, 6), torch.randn(*[3] * (kind == "GRU"), 4, 5)
    weight = layer.weight_hh_l0 if kind == "GRU" else layer.weight_hh
    for offset in (0, 9):
        weight.data = torch.randn(offset + weight.numel())[offset:].view(weight.shape)
        with torch.set_grad_enabled(mode != "inference"):
            for _ in range(4):
                outputs = layer(x)[0]
                if mode != "inference":
                    outputs.sum().backward()
            outputs = layer(x)[0]
            weight.untyped_storage().resize_(0)
            with pytest.raises(InputError, match="has no memory: its storage was freed"):
                outputs.sum().backward() if mode == "between" else layer(x)


class Other(torch.Tensor):
    """Tensors of a class that does PyTorch's operations on another tensor, `held`."""

    held: Any

    @classmethod
    def of(cls, held: Any) -> Any:
        """A tensor without memory of its own."""
        made = cls._make_wrapper_subclass(cls, held.shape, dtype=held.dtype)  # type: ignore[attr-defined]
        made.held = held
        return made

    @classmethod
    def __torch_dispatch__(cls, function: Any, _: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Does an operation on the tensors that those of this class hold."""

        def plain(value: Any) -> Any:
            return value.held if isinstance(value, Other) else value

        def wrapped(value: Any) -> Any:
            return Other.of(value) if isinstance(value, torch.Tensor) else value

        tree = torch.utils._pytree.tree_map
        return tree(wrapped, function(*tree(plain, args), **tree(plain, kwargs or {})))


@pytest.mark.parametrize("kind", ["GRU", "GRUCell", "Recurrence"])
def test_tensors_of_classes_that_replace_operations_run_in_torch(kind: str) -> None:
    """Also fake ones, of which a mode makes all tensors; machine code takes neither as a cotangent."""
    cell = torch.nn.GRUCell(5, 6)
    layers = {
        "GRU": lambda: st.GRU(5, 6),
        "GRUCell": lambda: st.GRUCell(5, 6),
        "Recurrence": lambda: st.Recurrence(cell, (torch.zeros(1, 5), torch.zeros(1, 6))),
    }
    layer, x = layers[kind](), torch.randn(*[3] * (kind != "GRUCell"), 4, 5)
    for _ in range(4):
        layer(x)[0].sum().backward()
    expected, made = layer(x)[0], layer(Other.of(x))[0]
    torch.testing.assert_close(made.held, expected)
    ones = Other.of(torch.ones_like(expected))
    with pytest.raises(InputError, match=r"a Other .* has no memory"):
        expected.backward(ones)
    with FakeTensorMode(allow_non_fake_inputs=True):
        assert layer(x)[0].shape == expected.shape


def test_sparse_sequences_of_a_recurrence_are_an_error_of_torch() -> None:
    with pytest.raises(RuntimeError, match="sparse"):
        two_outputs()(torch.randn(3, 4, 5, dtype=torch.float64).to_sparse())


class TwoOutputs(torch.nn.Module):
    """A cell of two outputs and a setting, whose biases are added and cut in two."""

    def __init__(self) -> None:
        """Makes the parameters of 5 inputs and 6 units."""
        super().__init__()
        shapes = {"W": (5, 12), "R": (6, 12), "b": (12,), "d": (12,)}
        for name, shape in shapes.items():
            setattr(self, name, torch.nn.Parameter(torch.randn(shape, dtype=torch.float64)))
        self.factor = 0.5

    def forward(self, x: Any, h: Any) -> Any:
        """The next memory, with one gate besides."""
        i, o = (x @ self.W + h @ self.R + (self.b + self.d)).chunk(2, -1)
        h = self.factor * torch.tanh(i) * torch.sigmoid(o)
        return (h, i), h


def two_outputs() -> Any:
    """A `Recurrence` of a `TwoOutputs`."""
    example = torch.zeros(1, 5, dtype=torch.float64), torch.zeros(1, 6, dtype=torch.float64)
    return st.Recurrence(TwoOutputs(), example)


def looped(cell: Any, x: Any) -> tuple[Any, Any]:
    """The second outputs, and the last state, of a cell in a loop of PyTorch's operations."""
    h, made = torch.zeros(x.shape[1], 6, dtype=x.dtype), list[Any]()
    for step in x:
        (_, second), h = cell(step, h)
        made.append(second)
    return torch.stack(made), h


@pytest.mark.parametrize("part", [0, 1])
def test_calls_of_a_recurrence_have_kinds(part: int) -> None:
    """Outputs and states that get no cotangent; parameters that change between calls of one kind."""
    torch.manual_seed(0)
    ours, numbers = two_outputs(), torch.randn(3, 4, 5, dtype=torch.float64)
    found = list[list[Any]]()
    for _ in range(5):
        made = list[list[Any]]()
        for run in (lambda x: (ours(x)[0][1], ours(x)[1]), lambda x: looped(ours.cell, x)):
            ours.zero_grad()
            x = numbers.clone().requires_grad_()
            results = run(x)
            results[part].square().sum().backward()
            made.append([*results, x.grad, *[p.grad.clone() for p in ours.parameters()]])
        torch.testing.assert_close(*made, atol=1e-12, rtol=1e-10)
        found.append(made[0])
        with torch.no_grad():
            for parameter in ours.parameters():
                parameter.neg_()
    assert len(ours.__dict__[KNOWN]) == 1
    assert all(map(torch.equal, found[0], found[4]))  # signs have come back, in a prepared call
    assert KNOWN not in copy.deepcopy(ours).__dict__


def test_what_a_recurrence_reads_makes_another_kind() -> None:
    """A setting of the cell, the mode, a frozen parameter, and a parameter that tools put in its place."""
    ours, x = two_outputs(), torch.randn(3, 4, 5, dtype=torch.float64)
    for change in range(4):
        if change == 1:
            ours.cell.factor = 2.0
        if change == 2:
            ours.eval()
        if change == 3:
            ours.cell.d.requires_grad_(False)
        for _ in range(3):
            torch.testing.assert_close(ours(x)[1], looped(ours.cell, x)[1], atol=1e-12, rtol=1e-10)
        assert len(ours.__dict__[KNOWN]) == change + 1
    weights = {f"cell.{name}": 2 * value.detach() for name, value in ours.cell.named_parameters()}
    doubled = torch.func.functional_call(ours, weights, (x,))[1]
    inner = {name.removeprefix("cell."): value for name, value in weights.items()}
    with torch.no_grad():
        for name, parameter in ours.cell.named_parameters():
            parameter.copy_(inner[name])
    torch.testing.assert_close(doubled, looped(ours.cell, x)[1], atol=1e-12, rtol=1e-10)


@pytest.mark.parametrize("kind", ["GRU", "LSTM"])
def test_weights_of_another_dtype_size_or_layout_are_another_kind(kind: str) -> None:
    """The forward pass finds out, as the key of a kind has nothing of a weight but its need of a gradient."""
    ours, theirs = pair(kind)
    for change in (
        lambda layer: layer.float(),
        lambda layer: layer.double(),
        lambda layer: setattr(layer.weight_hh_l0, "data", layer.weight_hh_l0.data.t().contiguous().t()),
        lambda layer: setattr(layer.weight_ih_l0, "data", layer.weight_ih_l0.data.flip(0)),
        lambda layer: layer.bias_hh_l0.requires_grad_(False),
    ):
        for layer in (ours, theirs):
            change(layer)
        for _ in range(4):
            made = list[list[Any]]()
            x = torch.randn(3, 4, 5, dtype=ours.bias_ih_l0.dtype)
            for layer in (ours, theirs):
                layer.zero_grad()
                outputs, _ = layer(x)
                outputs.square().sum().backward()
                made.append([outputs, *[p.grad for p in layer.parameters() if p.grad is not None]])
            near = 1e-5 if x.dtype is torch.float32 else 1e-12
            torch.testing.assert_close(*made, atol=near, rtol=10 * near)
    ours.weight_hh_l0.data = ours.weight_hh_l0.data[:, :-1]
    with pytest.raises(InputError, match="weight_hh"):
        ours(torch.randn(3, 4, 5, dtype=torch.float64))


def test_products_of_a_prepared_backward_pass_are_counted() -> None:
    """As those of the first calls, which are not prepared."""
    layer, x, counted = st.GRU(5, 6), torch.randn(3, 4, 5), set[int]()
    for _ in range(4):
        outputs, _ = layer(x)
        with FlopCounterMode(display=False) as counter:
            outputs.sum().backward()
        counted.add(counter.get_total_flops())
    assert len(counted) == 1
    assert min(counted) > 0


OLDER = """
import sys, torch
torch.Tensor.__dlpack_c_exchange_api__ = None
import stepnet.torch as st
seen = []
for kind in ("GRU", "LSTM"):
    theirs, ours = (getattr(part, kind)(5, 6) for part in (torch.nn, st))
    ours.load_state_dict(theirs.state_dict())
    for _ in range(4):
        made, x, seen = [], torch.randn(3, 4, 5), []
        sys.setprofile(lambda frame, what, _: seen.append(frame.f_code.co_name))
        for layer in (ours, theirs):
            layer.zero_grad()
            layer(x)[0].transpose(0, 1).square().sum().backward()
            made.append([parameter.grad for parameter in layer.parameters()])
        sys.setprofile(None)
        torch.testing.assert_close(*made)
    print(seen.count("describe") > 20, "run_forward" in seen, "run_backward" in seen)
"""


def test_versions_of_pytorch_without_functions_in_c_lend_memory_by_python() -> None:
    ran = subprocess.run([sys.executable, "-c", OLDER], capture_output=True, text=True, check=False)
    assert ran.stdout.split() == ["True", "False", "False"] * 2, ran.stderr
