"""`stepnet.torch.Scan` gives what a loop of PyTorch's operations gives, and the same gradients."""

import copy
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.utils.rnn import pack_sequence, pad_packed_sequence

import stepnet as sn
import stepnet.torch
from stepnet.errors import InputError
from stepnet.model.gradients import in_blocks
from stepnet.torch import Scan
from tests.torch.layer_cases import assert_same, numbers

ROWS, STEPS, HEADS, KEY, VALUE = 3, 5, 2, 4, 3
LENGTHS = 5, 0, 3
Named = dict[str, torch.Tensor]
A = -np.arange(1.0, 7.0).reshape(2, 3)


def delta(heads: int = HEADS, key: int = KEY, value: int = VALUE) -> Scan:
    return Scan(sn.RNN(sn.cells.gated_delta_rule, memory=(heads, key, value)))


def mamba(dtype: str = "float64") -> Scan:
    params = {"A": A.astype(dtype), "D": np.array([0.5, -1], dtype)}
    return Scan(sn.RNN(sn.cells.mamba, params, memory=(2, 3)))


def delta_inputs(
    dtype: torch.dtype = torch.float64, heads: int = HEADS, key: int = KEY, value: int = VALUE
) -> Named:
    shapes = {"q": (heads, key), "k": (heads, key), "v": (heads, value), "g": (heads,), "beta": (heads,)}
    x = {name: numbers(ROWS, STEPS, *shape, dtype=dtype) for name, shape in shapes.items()}
    return {name: one.requires_grad_() for name, one in (x | {"g": -x["g"].abs()}).items()}


def mamba_inputs(dtype: torch.dtype = torch.float64) -> Named:
    shapes = {"x": 2, "dt": 2, "B": 3, "C": 3}
    x = {name: numbers(ROWS, STEPS, size, dtype=dtype) for name, size in shapes.items()}
    return {name: one.requires_grad_() for name, one in (x | {"dt": x["dt"].abs()}).items()}


def delta_step(x: Named, h: torch.Tensor, params: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """The gated delta rule of the paper, with PyTorch's operations."""
    h = h * x["g"].exp()[..., None, None]
    error = x["beta"][..., None] * (x["v"] - torch.einsum("bhkv,bhk->bhv", h, x["k"]))
    h = h + torch.einsum("bhk,bhv->bhkv", x["k"], error)
    return torch.einsum("bhkv,bhk->bhv", h, x["q"]), h


def mamba_step(x: Named, h: torch.Tensor, params: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """The selective scan of the paper, with PyTorch's operations."""
    decay = (x["dt"][..., None] * params["A"]).exp()
    h = decay * h + (x["dt"] * x["x"])[..., None] * x["B"][:, None]
    return torch.einsum("bcs,bs->bc", h, x["C"]) + params["D"] * x["x"], h


def looped(step: Any, x: Named, h: torch.Tensor, params: Any, lengths: Any) -> tuple[Any, torch.Tensor]:
    """A step run one row after the other, each for its own length."""
    outputs, last = [], []
    for row, length in enumerate(lengths):
        memory, values = h[row : row + 1], []
        for time in range(length):
            y, memory = step({name: one[row : row + 1, time] for name, one in x.items()}, memory, params)
            values.append(y[0])
        like = step({name: one[:1, 0] for name, one in x.items()}, h[:1], params)[0][0]
        outputs.append(torch.stack([*values, *[torch.zeros_like(like)] * (STEPS - length)]))
        last.append(memory[0])
    return torch.stack(outputs), torch.stack(last)


def gradients(results: Any, x: Named, h: torch.Tensor, module: Any) -> Named:
    outputs, last = results
    of = x | {"h": h} | dict(module.named_parameters())
    loss = (outputs * numbers(*outputs.shape)).sum() + (last * numbers(*last.shape)).sum()
    made = torch.autograd.grad(loss, list(of.values()))
    return {"outputs": outputs, "last": last, **dict(zip(of, made, strict=True))}


CELLS: dict[str, tuple[Callable[[], Scan], Callable[[], Named], Any, tuple[int, ...]]] = {
    "gated_delta_rule": (delta, delta_inputs, delta_step, (HEADS, KEY, VALUE)),
    "mamba": (mamba, mamba_inputs, mamba_step, (2, 3)),
}


@pytest.mark.long(each=True)
@pytest.mark.parametrize("name", CELLS)
@pytest.mark.parametrize("lengths", [None, LENGTHS], ids=["dense", "ragged"])
def test_a_scan_gives_what_a_loop_gives(name: str, lengths: Any):
    make, inputs, step, shape = CELLS[name]
    module, x, h = make(), inputs(), numbers(ROWS, *shape).requires_grad_()
    given = None if lengths is None else torch.tensor(lengths)
    found = gradients(module(x, h, lengths=given), x, h, module)
    right = gradients(looped(step, x, h, module.params, lengths or [STEPS] * ROWS), x, h, module)
    assert_same(found, right)
    with torch.no_grad():
        outputs, last = module(dict(reversed(x.items())), h, lengths=given)
    assert_same({"y": outputs, "h": last}, {"y": right["outputs"], "h": right["last"]})


@pytest.mark.parametrize("checkpoint", [None, 2], ids=str)
def test_gradients_are_those_of_central_differences(checkpoint: Any):
    module, x, h = mamba(), mamba_inputs(), numbers(ROWS, 2, 3).requires_grad_()
    module.checkpoint = checkpoint
    parameters = dict(module.named_parameters())

    def run(*tensors: torch.Tensor) -> Any:
        named = dict(zip(parameters, tensors[len(x) + 1 :], strict=True))
        inputs = dict(zip(x, tensors, strict=False))
        arguments = inputs, tensors[len(x)], None, LENGTHS
        return torch.func.functional_call(module, named, arguments)

    tensors = *x.values(), h, *parameters.values()
    assert torch.autograd.gradcheck(run, tensors, fast_mode=True)
    if checkpoint is None:
        assert torch.autograd.gradgradcheck(run, tensors, fast_mode=True)


def test_gradients_in_blocks_are_those_of_a_loop_and_of_central_differences(monkeypatch: pytest.MonkeyPatch):
    sizes, gradients_of = set[int](), in_blocks.InBlocks.gradients

    def counted(self: in_blocks.InBlocks, *arguments: Any) -> Any:
        sizes.add(self.size)
        return gradients_of(self, *arguments)

    monkeypatch.setattr(in_blocks.InBlocks, "gradients", counted)
    shape = 1, 20, 20  # the least for which blocks of 4 pay; of the sequences one has none
    module, x, h = delta(*shape), delta_inputs(torch.float64, *shape), numbers(ROWS, *shape).requires_grad_()
    lengths = torch.tensor(LENGTHS)
    found = gradients(module(x, h, lengths=lengths), x, h, module)
    assert sizes == {4}
    assert_same(found, gradients(looped(delta_step, x, h, None, LENGTHS), x, h, module))

    def run(*tensors: torch.Tensor) -> Any:
        return module(dict(zip(x, tensors, strict=False)), tensors[len(x)], lengths=lengths)

    assert torch.autograd.gradcheck(run, (*x.values(), h), fast_mode=True)


def test_pieces_go_on_from_the_last_memory():
    module, x = mamba(), mamba_inputs()
    whole, last = module(x)
    first, memory = module({name: one[:, :2] for name, one in x.items()})
    second, end = module({name: one[:, 2:] for name, one in x.items()}, memory)
    assert torch.equal(torch.cat([first, second], 1), whole)
    assert torch.equal(end, last)
    stream = module.rnn.stream(rows=ROWS)
    steps = [stream.step({name: one[:, time].detach().numpy() for name, one in x.items()}) for time in (0, 1)]
    assert np.array_equal(np.stack(steps, 1), first.detach().numpy())


def test_structures_of_memories_parameters_and_statics():
    def step(x: Any, memory: Any, params: Any, statics: Any) -> Any:
        h, count = memory["h"], memory["count"]
        h = np.tanh(x @ params["gates"][0] + (h * statics) @ params["gates"][1] + params["b"])
        return (h, count), {"h": h, "count": count + 1}

    params = {"gates": (np.ones((2, 3)), np.ones((3, 3)) / 4), "b": np.arange(3.0)}
    memory = {"h": sn.Spec(3), "count": sn.Spec((), "int64")}
    module = Scan(sn.RNN(step, params, memory=memory))
    assert sorted(module.state_dict()) == ["params.b", "params.gates.0", "params.gates.1"]
    x, mask, h = numbers(ROWS, STEPS, 2), numbers(ROWS, 3).requires_grad_(), torch.ones(ROWS, 3).double()
    count = torch.tensor([0, 10, 20])
    (outputs, counts), last = module(x, {"count": count, "h": h}, mask)
    W, R, b = *module.params["gates"].values(), module.params["b"]
    values = []
    for time in range(STEPS):
        h = torch.tanh(x[:, time] @ W + (h * mask) @ R + b)
        values.append(h)
    right = torch.stack(values, 1)
    of = mask, W, R, b
    pairs = [torch.autograd.grad((y * numbers(*y.shape)).sum(), of) for y in (outputs, right)]
    found, expected = ({str(place): one for place, one in enumerate(made)} for made in pairs)
    assert_same(found | {"y": outputs, "h": last["h"]}, expected | {"y": right, "h": h})
    assert counts[:, -1].tolist() == [4, 14, 24]
    assert last["count"].tolist() == [5, 15, 25]
    assert last["count"].dtype == torch.int64


def test_a_single_array_is_a_parameter():
    module = Scan(sn.RNN(lambda x, h, p: (x * p + h, h + x), np.full(2, 3.0), memory=2))
    outputs, _ = module(torch.ones(1, 2, 2).double())
    outputs.sum().backward()
    assert [name for name, _ in module.named_parameters()] == ["params"]
    assert outputs.tolist() == [[[3, 3], [4, 4]]]
    assert module.params.grad.tolist() == [2, 2]


def test_a_state_dict_and_copies_carry_what_was_learnt():
    module, x = mamba("float32"), mamba_inputs(torch.float32)
    with torch.no_grad():
        module.params["A"].mul_(0.5)
    right, fresh = module(x)[0], mamba("float32")
    assert not torch.equal(fresh(x)[0], right)
    fresh.load_state_dict(module.state_dict())
    for one in (fresh, copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        assert torch.equal(one(x)[0], right)
        with torch.no_grad():
            assert torch.equal(one(x)[0], right)
    assert np.array_equal(
        module.rnn({name: one.detach().numpy() for name, one in x.items()})[0], right.detach()
    )
    copied = copy.deepcopy(module)
    with torch.no_grad():
        copied.params["A"].mul_(2)
    assert torch.equal(module(x)[0], right)


def test_a_module_in_doubles_computes_in_doubles():
    module, x = mamba("float32"), mamba_inputs()
    single = module({name: one.float() for name, one in x.items()})[0]
    outputs, _ = module.double()(x)
    right, _ = looped(mamba_step, x, torch.zeros(ROWS, 2, 3).double(), module.params, [STEPS] * ROWS)
    assert (single.dtype, outputs.dtype, module.rnn.params["A"].dtype) == (
        torch.float32,
        torch.float64,
        "float64",
    )
    assert_same({"": outputs}, {"": right})


def test_under_autocast_halves_are_computed_in_float32():
    module, x = mamba("float32"), mamba_inputs(torch.float32)
    half = {name: one.bfloat16() for name, one in x.items()}
    with torch.autocast("cpu", torch.bfloat16):
        outputs, _ = module(half)
        same, last = module(x)  # the state keeps its dtype, as PyTorch's scan asks of a carry
    assert torch.equal(outputs, module({name: one.float() for name, one in half.items()})[0])
    assert_same({"": same, "last": last}, dict(zip(("", "last"), module(x), strict=True)))
    assert (same.dtype, last.dtype) == (torch.float32, torch.float32)


def test_transforms_of_torch_func_give_gradients():
    module, x = delta(), delta_inputs()

    def loss(q: torch.Tensor) -> torch.Tensor:
        return module(x | {"q": q}, lengths=torch.tensor(LENGTHS))[0].square().sum()

    (right,) = torch.autograd.grad(loss(x["q"]), [x["q"]])
    assert_same({"q": torch.func.grad(loss)(x["q"])}, {"q": right})


def test_batches_without_rows_or_steps():
    module, x = delta(), delta_inputs()
    for rows, steps in ((0, STEPS), (ROWS, 0)):
        outputs, last = module({name: one[:rows, :steps] for name, one in x.items()})
        assert outputs.shape == (rows, steps, HEADS, VALUE)
        assert last.shape == (rows, HEADS, KEY, VALUE)
        assert not last.any()


# ---- what is refused ---------------------------------------------------------------------------------------


def changed(**tensors: Any) -> Named:
    return mamba_inputs() | tensors


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "dtype": (
        {"x": changed(dt=torch.ones(3, 5, 2, dtype=torch.complex64))},
        "x dt of a Scan is torch.complex64 on cpu",
    ),
    "device": ({"x": changed(B=torch.ones(3, 5, 3, device="meta"))}, "x B of a Scan is .* on meta"),
    "array": ({"x": changed(C=np.ones((3, 5, 3)))}, "x C of a Scan is a ndarray; it should be a tensor"),
    "time": ({"x": changed(x=torch.ones(3, 4, 2))}, "different batch and time: .*3, 4.* and .*3, 5"),
    "features": ({"x": changed(B=torch.ones(3, 5, 9))}, "C of mamba has 3 states where B has 9"),
    "initial": (
        {"x": changed(), "initial": torch.ones(2, 2, 3)},
        r"is \[2, 2, 3\]; it should be \[3, 2, 3\]",
    ),
    "complex": (
        {"x": changed(), "initial": torch.ones(3, 2, 3, dtype=torch.complex64)},
        "initial of a Scan is torch.compl",
    ),
    "lengths": ({"x": changed(), "lengths": torch.tensor([5, 6, 1])}, r"lengths\[1\] is 6; the array has 5"),
    "fractions": ({"x": changed(), "lengths": torch.ones(3)}, "lengths are 3 whole numbers"),
}


@pytest.mark.parametrize("name", WRONG)
def test_tensors_that_do_not_fit_are_refused(name: str):
    arguments, message = WRONG[name]
    with pytest.raises(sn.StepnetError, match=message):
        mamba()(**arguments)


@pytest.mark.parametrize("lengths", [None, LENGTHS])
def test_time_may_be_the_first_axis(lengths: Any):
    found = []
    for scan in (mamba(), mamba_time_major()):
        x = changed()
        given = {name: tensor.transpose(0, 1) for name, tensor in x.items()} if not scan.batch_first else x
        outputs, last = scan(given, lengths=None if lengths is None else torch.tensor(lengths))
        (outputs.square().sum() + last.sum()).backward()
        outputs = outputs if scan.batch_first else outputs.transpose(0, 1)
        gradients = {name: tensor.grad for name, tensor in x.items()}
        found.append({"y": outputs, "last": last} | gradients)
        with torch.no_grad():
            again = scan(given, lengths=lengths)[0]
        assert_same({"y": again if scan.batch_first else again.transpose(0, 1)}, {"y": outputs})
    assert_same(*found)


def mamba_time_major() -> Scan:
    return Scan(mamba().rnn, batch_first=False)


@pytest.mark.parametrize("batch_first", [True, False])
def test_axes_that_others_contradict_are_refused(batch_first: bool):
    def step(x: Any, h: Any, params: Any, statics: Any) -> Any:
        return x * statics + h, h

    rnn = sn.RNN(step, np.zeros(1), memory=3)
    scan = Scan(rnn, batch_first=batch_first)
    x = (
        numbers(5, 2, 3) if batch_first else numbers(2, 5, 3)
    )  # of 5 sequences with 2 steps, and not of 2 with 5
    rows = {"initial": numbers(2, 3), "statics": numbers(2, 3), "lengths": torch.tensor([5, 3])}
    said = rf"has 2 rows, .* batch_first={batch_first} of this Scan: .*={not batch_first} for"
    for name, tensor in rows.items():
        with pytest.raises(InputError, match=rf"^{name} {said}"):
            scan(x, **({"statics": numbers(5, 3)} | {name: tensor}))


def test_batch_first_is_true_or_false():
    with pytest.raises(InputError, match="batch_first"):
        Scan(mamba().rnn, batch_first="time")  # type: ignore[arg-type]
    assert "batch_first=True" in repr(mamba())


def test_sequences_that_are_not_padded_are_refused_with_what_pads_them():
    scan = Scan(sn.RNN(lambda x, h, p: (h * p + x, h + x), np.full(2, 0.5), memory=2))
    rows = [torch.ones(4, 2).double(), torch.ones(1, 2).double()]
    packed, nested = pack_sequence(rows), torch.nested.nested_tensor(rows, layout=torch.jagged)
    with pytest.raises(InputError, match=r"not a PackedSequence: .*rnn\.pad_packed_sequence"):
        scan(packed)
    with pytest.raises(
        InputError, match=r"nested tensor: .* nested\.to_padded_tensor\(0\.0\) and lengths = nes"
    ):
        scan(nested)
    with pytest.raises(InputError, match=r"not a list of them: .*pad_sequence\(.*lengths = \[len\(one\)"):
        scan(rows)
    for ragged in (packed, nested, {"keys": nested}):
        with pytest.raises(InputError, match="statics of a Scan are padded tensors, which have no lengths"):
            scan(torch.ones(2, 4, 2).double(), statics=ragged)
    with pytest.raises(InputError, match="takes padded sequences, not a PackedSequence"):
        scan(torch.ones(2, 4, 2).double(), initial=packed)
    x, lengths = pad_packed_sequence(packed, batch_first=True)
    right = torch.tensor([[4.0, 4.0], [1.0, 1.0]]).double()
    assert torch.equal(scan(x, lengths=lengths)[1], right)
    padded, counts = nested.to_padded_tensor(0.0), [len(sequence) for sequence in nested.unbind()]
    assert torch.equal(scan(padded, lengths=counts)[1], right)


def test_parameters_on_another_device_are_refused():
    with pytest.raises(InputError, match=r"params A of a Scan is torch\.float64 on meta"):
        mamba().to("meta")(mamba_inputs())


def test_what_is_no_recurrence_is_refused():
    with pytest.raises(
        InputError, match=r"Scan takes an sn\.RNN, not a GRUCell; .* stepnet\.torch\.Recurrence"
    ):
        Scan(torch.nn.GRUCell(2, 3))  # type: ignore[arg-type]
    ends = sn.RNN(lambda x, h, p: (h + x, h + x), memory=(), until=lambda y, h: y > 3)
    with pytest.raises(InputError, match="a Scan cannot run a recurrence with until="):
        Scan(ends)
    named = sn.RNN(lambda x, h, p: (h + x, h + p["a.b"]), {"a.b": np.ones(1)}, memory=1)
    with pytest.raises(
        InputError, match=r"a parameter is called 'a\.b', and in PyTorch: parameter name can't"
    ):
        Scan(named)
