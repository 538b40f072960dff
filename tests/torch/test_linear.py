"""`stepnet.torch.Linear`: linear layers with weights in bfloat16 and int8, by `accelerate(linear=)`."""

import copy
import io
import pickle
from typing import Any

import numpy as np
import pytest
import torch
import torch.ao.nn.quantized.dynamic as quantized
from torch.fx.experimental.proxy_tensor import make_fx

import stepnet.torch
from stepnet.errors import InputError
from tests.support.tolerance import assert_close

INPUTS, OUTPUTS = 37, 21
EPSILON = {torch.float32: 0.0, torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}
"""The relative error of rounding a result to a dtype."""


def made(weights: Any, *sizes: int, bias: bool = True, dtype: Any = torch.float32, seed: int = 0) -> Any:
    """A layer of torch.nn of these sizes, made one of stepnet's."""
    torch.manual_seed(seed)
    layer = torch.nn.Linear(*sizes or (INPUTS, OUTPUTS), bias=bias).to(dtype).eval()
    stepnet.torch.accelerate(layer, linear=weights)
    assert isinstance(layer, stepnet.torch.Linear)
    return layer


def rounded(weight: torch.Tensor, weights: str) -> np.ndarray:
    """The weights that a layer reads, in float64, by PyTorch's bfloat16 and by NumPy's `rint`."""
    if weights == "bfloat16":
        return weight.detach().bfloat16().double().numpy()
    numbers = weight.detach().float().numpy()
    largest = np.abs(numbers).max(1, keepdims=True)
    return np.rint(numbers * (np.float32(127) / largest)) * (largest.astype(np.float64) / 127)


def expected(layer: Any, x: torch.Tensor, weights: str) -> np.ndarray:
    """The layer in float64, with rounded weights."""
    y = x.double().numpy() @ rounded(layer.weight, weights).T
    return y if layer.bias is None else y + layer.bias.detach().double().numpy()


def run(layer: Any, x: torch.Tensor) -> torch.Tensor:
    """Calls a layer without gradients."""
    with torch.no_grad():
        return layer(x)


WEIGHTS = pytest.mark.parametrize("weights", ["bfloat16", "int8"])


@WEIGHTS
@pytest.mark.parametrize("dtype", list(EPSILON))
@pytest.mark.parametrize("bias", [False, True])
def test_the_product_is_that_of_rounded_weights(weights: str, dtype: Any, bias: bool):
    layer = made(weights, bias=bias, dtype=dtype)
    for shape in ((), (1,), (3,), (2, 5), (2, 1, 3)):
        x = torch.randn(*shape, INPUTS).to(dtype)
        y = run(layer, x)
        assert y.dtype is dtype
        right = expected(layer, x, weights)
        if dtype is torch.float32:
            assert_close(y.numpy(), right, width=INPUTS)
        else:  # of float32 sums, rounded once
            away = np.abs(y.double().numpy() - right)
            assert (away <= 1e-5 + EPSILON[dtype] * np.abs(right)).all()


@WEIGHTS
def test_int8_and_bfloat16_are_other_functions_than_float32(weights: str):
    layer = made(weights)
    x = torch.randn(4, INPUTS)
    exact = torch.nn.functional.linear(x, layer.weight.detach(), layer.bias.detach())
    assert 1e-4 < float((run(layer, x) - exact).abs().max()) < 0.05


@WEIGHTS
@pytest.mark.parametrize("sizes", [(64, 48), (62, 5), (1, 1), (3, 130)])
def test_a_vector_has_the_same_bits_in_any_batch(weights: str, sizes: tuple[int, int]):
    layer, x = made(weights, *sizes), torch.randn(40, sizes[0])
    whole = run(layer, x)
    for rows in (1, 2, 7, 8, 9, 33):
        assert torch.equal(run(layer, x[:rows]), whole[:rows])
        assert torch.equal(run(layer, x[:rows].T.contiguous().T), whole[:rows])
    assert torch.equal(run(layer, x.reshape(5, 2, 4, -1)), whole.reshape(5, 2, 4, -1))


@WEIGHTS
def test_the_interpreter_computes_the_same(weights: str):
    layer, x = made(weights), torch.randn(10, INPUTS)
    compiled = run(layer, x)
    done = stepnet.torch.accelerate(layer, engine="interpret")
    assert (
        str(done) == "the model: left, it is stepnet's already; its engine is now 'interpret', and was 'auto'"
    )
    assert "weights=" in repr(layer)
    assert "engine='interpret'" in repr(layer)
    assert_close(run(layer, x).numpy(), compiled.numpy(), width=INPUTS)


def test_layers_are_replaced_in_place_and_back():
    model = torch.nn.Sequential(
        torch.nn.Embedding(9, 8), torch.nn.GRU(8, 8), torch.nn.Linear(8, 9, bias=False)
    )
    model[2].weight = model[0].weight
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    objects = list(map(id, model.parameters()))
    x = torch.randn(3, 8)
    plain = run(model[2], x)
    done = stepnet.torch.accelerate(model, linear="int8")
    assert str(done) == "1: GRU\n2: Linear (int8)"
    assert model[2].weight is model[0].weight
    assert model[2].weights == "int8"
    assert not torch.equal(run(model[2], x), plain)
    assert repr(model[2]) == "Linear(in_features=8, out_features=9, bias=False, weights='int8')"
    again = stepnet.torch.accelerate(model, linear="bfloat16")
    assert str(again).splitlines()[1] == (
        "2: left, it is stepnet's already; its weights are now in bfloat16, and were in int8"
    )
    assert_close(run(model[2], x).numpy(), expected(model[2], x, "bfloat16"), width=8)
    assert list(map(id, model.parameters())) == objects
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    done.undo()
    assert type(model[2]) is torch.nn.Linear
    assert torch.equal(run(model[2], x), plain)
    assert vars(model[2]).keys() == vars(torch.nn.Linear(1, 1)).keys()


def test_by_default_linear_layers_are_left():
    model = torch.nn.Sequential(torch.nn.GRU(3, 4), torch.nn.Linear(4, 2))
    assert str(stepnet.torch.accelerate(model)) == "0: GRU"
    assert type(model[1]) is torch.nn.Linear


def changed_in_place(layer: Any) -> None:
    """Changes the weight as an optimizer does."""
    with torch.no_grad():
        layer.weight.mul_(-2)


def loaded(layer: Any) -> None:
    """Changes the weight by a state_dict."""
    layer.load_state_dict({"weight": torch.randn(OUTPUTS, INPUTS), "bias": torch.randn(OUTPUTS)})


def replaced(layer: Any) -> None:
    """Sets another parameter in the place of the weight."""
    layer.weight = torch.nn.Parameter(torch.randn(OUTPUTS, INPUTS))


def with_other_data(layer: Any) -> None:
    """Gives the parameter other memory."""
    layer.weight.data = torch.randn(OUTPUTS, INPUTS)


def without_bias(layer: Any) -> None:
    """Takes the bias away."""
    layer.bias = None


def stepped(layer: Any) -> None:
    """Changes the parameters by fused optimizers, whose changes PyTorch does not count."""
    for parameter in layer.parameters():
        parameter.grad = torch.ones_like(parameter)
    for kind in (torch.optim.AdamW, torch.optim.SGD, torch.optim.Adagrad):
        kind(layer.parameters(), 0.5, fused=True).step()


CHANGES = changed_in_place, loaded, replaced, with_other_data, without_bias, stepped


@WEIGHTS
@pytest.mark.parametrize("change", CHANGES)
def test_weights_are_rounded_again_when_they_change(weights: str, change: Any):
    layer, x = made(weights), torch.randn(3, INPUTS)
    before = run(layer, x)
    assert torch.equal(run(layer, x), before)
    change(layer)
    assert_close(run(layer, x).numpy(), expected(layer, x, weights), width=INPUTS)
    assert not torch.equal(run(layer, x), before)


def test_weights_are_packed_once():
    layer = made("int8")
    run(layer, torch.randn(INPUTS))
    packed = vars(layer)["_bound"]
    stepped(torch.nn.Linear(2, 2))  # another model in training
    for rows in (1, 2, 3, 1, 50, 1):
        run(layer, torch.randn(rows, INPUTS))
    assert vars(layer)["_bound"] is packed
    assert len(packed.steps) == 2  # calls for other numbers of vectors were dropped


@WEIGHTS
def test_copies_compute_the_same(weights: str):
    model = torch.nn.Sequential(made(weights))
    x = torch.randn(2, INPUTS)
    right, file = run(model, x), io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model)), loaded):
        assert isinstance(other[0], stepnet.torch.Linear)
        assert torch.equal(run(other, x), right)


def test_gradients_are_refused():
    layer = made("int8")
    x = torch.randn(2, INPUTS)
    y = layer(x)
    assert y.requires_grad
    assert torch.equal(y, run(layer, x))
    with pytest.raises(InputError, match="Linear has weights in fewer bits, and has no gradients: undo"):
        y.sum().backward()
    layer.requires_grad_(False)
    assert not layer(torch.randn(2, INPUTS)).requires_grad
    with pytest.raises(InputError, match="has no gradients"):
        layer(torch.randn(2, INPUTS, requires_grad=True)).sum().backward()


@pytest.mark.filterwarnings("ignore:`torch.jit", "ignore:torch.ao.quantization")
def test_tools_that_record_are_refused_by_name():
    model, x = torch.nn.Sequential(made("bfloat16")), torch.randn(2, INPUTS)
    no_graph = "a stepnet.torch.Linear has weights in fewer bits, and is no operation of PyTorch for a graph"
    for record in (
        lambda: torch.export.export(model, (x,), strict=False),
        lambda: torch.jit.trace(model, x),
        lambda: make_fx(model)(x),
        lambda: stepnet.torch.graph(model, x),
    ):
        with pytest.raises(InputError, match=no_graph):
            record()
    with pytest.raises(InputError, match=r"torch.jit.script cannot compile it: undo\(\)"):
        torch.jit.script(model)
    with pytest.raises(InputError, match=r"and torch.func and forward mode need gradients"):
        torch.func.vmap(model)(x)
    with pytest.raises(InputError, match=r"torch.ao.quantization does not know stepnet.torch.Linear"):
        torch.ao.quantization.quantize_dynamic(model, {torch.nn.Linear})
    assert torch.equal(run(torch.fx.symbolic_trace(model), x), run(model, x))


def test_inputs_that_do_not_fit_raise_pytorchs_errors():
    ours, theirs = made("int8"), torch.nn.Linear(INPUTS, OUTPUTS)
    wrong = (
        torch.ones(2, INPUTS + 1),
        torch.ones(()),
        torch.ones(2, INPUTS, dtype=torch.float64),
        torch.ones(2, INPUTS, dtype=torch.int64),
        [1.0],
    )
    for x in wrong:
        for _ in range(2):  # also once the weights are packed
            with pytest.raises((RuntimeError, TypeError)) as right:
                theirs(x)
            with pytest.raises(type(right.value)) as error:
                ours(x)
            assert str(error.value) == str(right.value)
            run(ours, torch.ones(INPUTS))
    for shape in ((0, INPUTS), (3, 0, INPUTS)):
        assert run(ours, torch.ones(shape)).shape == (*shape[:-1], OUTPUTS)
    with pytest.raises(InputError, match=r"the input of Linear is torch.sparse_coo"):
        ours(torch.ones(2, INPUTS).to_sparse())


def test_results_are_in_the_dtype_of_autocast():
    layer, x = made("int8"), torch.randn(2, INPUTS)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = run(layer, x.bfloat16())
    assert y.dtype is torch.bfloat16
    assert torch.equal(y, run(layer, x.bfloat16().float()).bfloat16())


def test_layers_that_were_moved_are_refused():
    layer = made("int8")
    with pytest.raises(InputError, match=r"computes in float32, while its parameters are torch.float64"):
        layer.double()(torch.ones(INPUTS, dtype=torch.float64))
    half = made("int8")
    run(half, torch.ones(INPUTS))
    assert run(half.bfloat16(), torch.ones(INPUTS).bfloat16()).dtype is torch.bfloat16


class Subclass(torch.nn.Linear):
    """A class that may do something else."""


class Adapter(torch.nn.Module):
    """A layer that adapts another, as those of PEFT do."""

    def __init__(self) -> None:
        super().__init__()
        self.base_layer = torch.nn.Linear(4, 4)


class Holder(torch.nn.Module):
    """Linear layers that are left as they are."""

    def __init__(self) -> None:
        super().__init__()
        self.subclass, self.adapter = Subclass(4, 4), Adapter()
        self.double, self.meta = torch.nn.Linear(4, 4).double(), torch.nn.Linear(4, 4, device="meta")
        self.own, self.hooked = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)
        self.own.forward = lambda input: input  # noqa: A006
        self.hooked.register_forward_pre_hook(lambda *_: None)
        self.parametrized = torch.nn.utils.parametrizations.weight_norm(torch.nn.Linear(4, 4))
        self.quantized = quantized.Linear(4, 4)
        self.encoder = torch.nn.TransformerEncoderLayer(4, 2, 4)
        self.nothing, self.dt_proj = torch.nn.Linear(0, 4), torch.nn.Linear(4, 4)
        cell = torch.nn.Linear(4, 4)
        self.recurrence = stepnet.torch.Recurrence(Cell(cell), (torch.ones(1, 4), torch.zeros(1, 4)))
        with torch.inference_mode():
            self.inference = torch.nn.Linear(4, 4)


class Cell(torch.nn.Module):
    """A cell with a linear layer."""

    def __init__(self, linear: torch.nn.Module) -> None:
        super().__init__()
        self.linear = linear

    def forward(self, x: torch.Tensor, h: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        h = torch.tanh(self.linear(h) + x)
        return h, h


@pytest.mark.filterwarnings("ignore")
def test_other_layers_are_left_with_the_reason():
    model = Holder()
    done = stepnet.torch.accelerate(model, linear="int8")
    assert not done.replaced
    reasons = {
        "subclass": "Subclass is a subclass",
        "adapter.base_layer": "Adapter adapts it",
        "double": "its parameters are torch.float64: only those in float32, float16 or bfloat16 are rounded",
        "meta": "its parameters are on meta: linear layers in fewer bits run on the CPU",
        "own": "its forward was replaced on the layer itself",
        "hooked": "it has hooks",
        "parametrized": "ParametrizedLinear is a subclass",
        "quantized": "torch.ao.nn.quantized.dynamic.modules.linear.Linear is not torch.nn.Linear",
        "encoder.linear1": "a TransformerEncoderLayer reads its weights itself",
        "encoder.self_attn.out_proj": "NonDynamicallyQuantizableLinear is a subclass",
        "nothing": "it has no weights",
        "dt_proj": "layers of Mamba multiply by the weight of dt_proj themselves",
        "inference": "its parameters were made in inference mode",
    }
    for name, why in reasons.items():
        assert done.left[name].startswith(why), (name, done.left[name])
    [inner] = [name for name in done.left if name.startswith("recurrence.")]
    assert done.left[inner] == "it is computed in the step of a Recurrence"


def test_arguments_that_are_not_known_are_refused():
    with pytest.raises(InputError, match=r"linear is 'int4': it is one of 'bfloat16', 'int8', or None"):
        stepnet.torch.accelerate(torch.nn.Linear(2, 2), linear="int4")  # type: ignore[arg-type]
    with pytest.raises(
        InputError, match=r"linear='int8' is for layers torch.nn.Linear, and the model has none"
    ):
        stepnet.torch.accelerate(torch.nn.GRU(2, 2), linear="int8")


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_int8_refuses_weights_that_are_not_finite_by_name(number: float):
    model = torch.nn.Sequential(torch.nn.GRU(2, 2), torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
    torch.nn.utils.vector_to_parameters(torch.tensor([1.0, 1, number, 1, 0, 0]), model[2].parameters())
    with pytest.raises(
        InputError, match=r"the weight of 2 has NaN or infinity, for which int8 has no numbers"
    ):
        stepnet.torch.accelerate(model, linear="int8")
    assert type(model[0]) is torch.nn.GRU
    assert type(model[1]) is torch.nn.Linear
    stepnet.torch.accelerate(model, linear="bfloat16")
    y = run(model[2], torch.ones(2))
    assert y.isfinite().tolist() == [True, False]


@WEIGHTS
def test_a_vector_of_nan_changes_no_other(weights: str):
    layer, x = made(weights), torch.randn(20, INPUTS)
    right = run(layer, x)
    x[1::2] = float("nan")
    for rows in (4, 20):
        y = run(layer, x[:rows])
        assert torch.equal(y[::2], right[:rows:2])
        assert bool(y[1::2].isnan().all())
