"""`Linear`: a linear layer of PyTorch whose product reads its weights in bfloat16 or int8.

    weight [out, in]  --rounded and packed once-->  bfloat16, or int8 and a scale for each output
    x [..., in]       --one step of a net, from the memory x to the memory y-->  y [..., out], sums in float32

As the product is one of a memory, threads share the columns of the weights also for a single vector.

A layer of another library that runs several linear layers as one step gives `weights` of these to the key of
the step: its products then round the parameters as the layers do.
"""

from collections import OrderedDict
from functools import lru_cache
from typing import Any, Literal

import numpy as np

from stepnet.compiler.targets import checked_engine
from stepnet.compiler.trace.spec import Spec
from stepnet.compiler.values.once import put_latest
from stepnet.errors import InputError
from stepnet.model.gradients.differentiable import ModelNet, SingleStep
from stepnet.model.precisions import with_rounded_weights
from stepnet.model.program import Asked
from stepnet.model.recurrence import RNN
from stepnet.torch.arrays import HALVES, PLAIN, tensor_of, view_of
from stepnet.torch.bound import BOUND
from stepnet.torch.function import count_products
from stepnet.torch.marks import marks_of, packed_marks
from stepnet.torch.pytorch import pytorch
from stepnet.torch.quantizing import Qconfig
from stepnet.torch.recording import (
    TRACES,
    called,
    check_no_proxy,
    is_recorded,
    is_transformed,
    untraced,
    wanted_of,
)
from stepnet.torch.sequences import (
    HOST,
    MOST_KEPT,
    as_cast,
    check_tensors,
    dense_positions,
    dtype_of_run,
    is_autocast,
    tensors_named,
    text_of_engine,
)

torch: Any = pytorch("torch")
Weights = Literal["bfloat16", "int8"]
"""The dtypes in which a linear layer reads its weights."""
DTYPES = {torch.float32: "float32"} | HALVES
"""The dtypes of layers whose weights are rounded; float64 is not, as a user of it wants more digits."""
FEW, MOST_STEPS = 8, 2
"""The largest number of vectors whose calls are prepared, and the number of such calls that a layer keeps."""
NAMES = "weight", "bias"
BACK = "undo() of what `accelerate` returned gives the layers of torch.nn back"


class Linear(torch.nn.Linear):
    """`torch.nn.Linear`, run by stepnet with weights in bfloat16, or in int8 with a scale for each output.

    `accelerate(model, linear=...)` makes layers of torch.nn such layers, in place. Parameters and state_dict
    are those of torch.nn. Products read weights that were rounded once, and are rounded again when PyTorch
    counts a change of the parameter, an optimizer of PyTorch has changed it, or it is replaced; other changes
    that PyTorch does not count, such as `layer.weight.data.add_(1)`, are not noticed. Inputs are not rounded,
    and sums are float32. The bits of a result do not depend on the other vectors of a call.

    The layer runs on the CPU, without gradients: `backward` raises an error. So do graphs of torch.export,
    torch.jit.trace and make_fx; torch.compile runs it between its graphs.

    weights: "bfloat16" or "int8". engine: the engine that runs the layer, or several in order of preference.

    Raises:
        InputError: Where the layer cannot run. Errors of shapes and dtypes of inputs are PyTorch's own.

    >>> import torch, stepnet.torch
    >>> layer = torch.nn.Linear(64, 32)
    >>> x = torch.ones(2, 64)
    >>> exact = layer(x).detach()
    >>> done = stepnet.torch.accelerate(layer, linear="int8")
    >>> layer
    Linear(in_features=64, out_features=32, bias=True, weights='int8')
    >>> with torch.no_grad():
    ...     bool((layer(x) - exact).abs().max() < 0.02)
    True
    """

    weights: Weights = "bfloat16"
    engine: Asked = "auto"
    qconfig = Qconfig()
    _call_impl = called

    def forward(self, input: Any) -> Any:  # noqa: A002 - PyTorch's name
        """Computes the layer for vectors `input` [..., in_features]; returns [..., out_features]."""
        return untraced(run_linear)(self, input)

    def __prepare_scriptable__(self) -> Any:
        """Raises `InputError`: torch.jit.script cannot compile machine code."""
        raise InputError(refused("torch.jit.script cannot compile it"))

    def extra_repr(self) -> str:
        """Describes the layer for `repr` as torch.nn does, with its weights, and its engine if chosen."""
        theirs: str = torch.nn.Linear.extra_repr(self)
        return f"{theirs}, weights={self.weights!r}{text_of_engine(self.engine)}"

    def __getstate__(self) -> dict[str, Any]:
        """Returns the state of the layer without its packed weights, which a copy makes again."""
        state: dict[str, Any] = torch.nn.Linear.__getstate__(self)
        state.pop(BOUND, None)
        return state


def refused(why: str) -> str:
    """Returns the message of an error for a call that `Linear` does not run. why: the reason."""
    return f"a stepnet.torch.Linear has weights in fewer bits, and {why}: {BACK}"


def run_linear(layer: Any, value: Any) -> Any:
    """Computes a `Linear` for vectors `value` [..., in_features]; returns [..., out_features].

    Inputs that do not fit, or have no numbers, go to torch.nn's own layer, which raises PyTorch's errors.
    """
    check_tools(value)
    names = NAMES if layer._parameters.get("bias") is not None else NAMES[:1]
    tensors = tensors_named(layer, names)
    packed: PackedLinear | None = layer.__dict__.get(BOUND)
    if packed is None or not packed.fits(layer, value, tensors):
        if not has_numbers(value, tensors[0]):
            return torch.nn.functional.linear(value, *tensors)
        [value] = as_cast(tensors[0].dtype, value)
        check(layer, names, tensors, value)
        if packed is None or not packed.fits(layer, value, tensors):
            packed = layer.__dict__[BOUND] = PackedLinear(layer, tensors)
    is_wanted = torch.is_grad_enabled() and wanted_of([value, *tensors])
    made = WithoutGradient.apply(packed, value, *tensors) if is_wanted else packed(value)
    return made.to(dtype_of_run("Linear", made.device, made.dtype, made.dtype))


def has_numbers(value: Any, weight: Any) -> bool:
    """Tells whether an input of a layer fits its weight, and both have numbers to compute with. The dtypes of
    both must be equal, except under autocast, which casts the input.
    """
    if not (isinstance(value, torch.Tensor) and value.dim()):
        return False
    same = value.dtype == weight.dtype or (is_autocast(value.device) and value.is_floating_point())
    has_all = bool(value.numel() and weight.numel()) and "meta" not in (value.device.type, weight.device.type)
    return same and has_all and value.shape[-1] == weight.shape[-1] and value.device == weight.device


def check_tools(value: Any) -> None:
    """Raises `InputError` where a tool of PyTorch records the operations on a layer's input, or transforms
    them: the layer is no operation of PyTorch.
    """
    check_no_proxy(value)
    if is_recorded() or TRACES.get():
        raise InputError(refused("is no operation of PyTorch for a graph"))
    if is_transformed():
        raise InputError(refused("torch.func and forward mode need gradients, which it does not have"))


def check(layer: Any, names: tuple[str, ...], tensors: list[Any], value: Any) -> None:
    """Raises `InputError` for a layer that was moved to a device or to a dtype in which it cannot run.

    names, tensors: of the parameters. value: the input.
    """
    weight = tensors[0]
    if weight.dtype not in DTYPES:
        raise InputError(refused(f"computes in float32, while its parameters are {weight.dtype}"))
    if weight.device.type != HOST:
        raise InputError(refused(f"runs on the CPU, while its parameters are on {weight.device}"))
    if any(tensor.is_inference() for tensor in tensors):
        raise InputError(refused("PyTorch counts no changes of parameters that were made in inference mode"))
    check_tensors(type(layer).__name__, names, tensors, value, [])


# ---- the product -------------------------------------------------------------------------------------------


class PackedLinear:
    """The packed weights of a layer, and prepared calls for few vectors, which share them.

    Attributes:
        weights, engine: The dtype of the weights, and the engines in order of preference, as the layer has
            them.
        dtype, inputs, outputs: The dtype of the parameters, and the features of the layer.
        marks: Addresses and version counts of the parameters, to notice changes. The net holds the memory of
            the parameters, so that no other tensor gets their addresses.
        net: The net that is bound to the parameters.
        steps: The prepared calls by their number of vectors, the latest few. One is removed while in use, as
            several threads may call a layer.
    """

    def __init__(self, layer: Any, tensors: list[Any]) -> None:
        """Packs the parameters of a layer for machine code. tensors: the weight, and the bias."""
        self.weights, self.engine, self.dtype = layer.weights, layer.engine, tensors[0].dtype
        self.outputs, self.inputs = tensors[0].shape
        sizes = self.inputs, self.outputs, DTYPES[self.dtype], len(tensors) == 2
        self.marks, self.steps = packed_marks(tensors), OrderedDict[int, SingleStep]()
        self.general = net_of_linear(self.weights, *sizes)
        self.net, self.order = self.general.fixed([*map(view_of, tensors)]), checked_engine(self.engine)

    def fits(self, layer: Any, value: Any, tensors: list[Any]) -> bool:
        """Tells whether these packed weights still equal the weights of a layer and can be multiplied with an
        input `value`. tensors: the weight, and the bias.
        """
        return (
            type(value) in PLAIN
            and value.dtype is self.dtype
            and value.shape[-1:] == (self.inputs,)
            and value.numel() > 0
            and value.is_cpu
            and value.layout is torch.strided
            and layer.weights == self.weights
            and layer.engine == self.engine
            and marks_of(tensors) == self.marks
        )

    def __call__(self, value: Any) -> Any:
        """Computes y [..., out_features] for x [..., in_features], in the dtype of x."""
        x = value.detach().reshape(-1, self.inputs)
        rows = len(x)
        if torch._C._len_torch_dispatch_stack():
            count_products(self.general, dense_positions(rows, 1, False))
        y = self.few(x, rows) if rows <= FEW else self.many(x, rows)
        return y.reshape(*value.shape[:-1], self.outputs)

    def few(self, x: Any, rows: int) -> Any:
        """Computes y for a few vectors x [rows, in_features], by a prepared call."""
        if (step := self.steps.pop(rows, None)) is None:
            step = SingleStep(self.general, rows)
            step.bind_to(self.net.program.bound(self.order))
        _, (own_x, _), _, (_, own_y) = step.arrays
        tensor_of(own_x).copy_(x)
        step.run()
        y = tensor_of(own_y).to(x.dtype, copy=True)
        put_latest(self.steps, rows, step, MOST_STEPS)
        return y

    def many(self, x: Any, rows: int) -> Any:
        """Computes y for any number of vectors x [rows, in_features]."""
        unread = np.zeros((rows, 1), np.float32)
        *_, y = self.net([unread, view_of(x.float()), None], dense_positions(rows, 1, False), self.order)
        return tensor_of(y).to(x.dtype)


@lru_cache(MOST_KEPT)
def net_of_linear(weights: Weights, inputs: int, outputs: int, dtype: str, has_bias: bool) -> ModelNet:
    """Returns the net of linear layers of these sizes, over sequences of one step.

    weights: the dtype to which the weights are rounded. dtype: the dtype of the parameters.
    """
    shapes = {"weight": (outputs, inputs)} | ({"bias": (outputs,)} if has_bias else {})
    params = {name: np.zeros(shape, dtype) for name, shape in shapes.items()}
    memory = {"x": Spec((inputs,), "float32"), "y": Spec((outputs,), "float32")}
    rnn = RNN(linear_step, params, memory=memory, inputs=Spec((1,), "float32"))
    return ModelNet.of(with_rounded_weights(rnn, weights))


def linear_step(x: Any, memory: Any, params: Any) -> tuple[Any, Any]:
    """Computes a linear layer as a step of a net, from one memory to another: y = x @ weight.T + bias.

    memory: a dict of x [rows, in] and y [rows, out]; y is not read. x: an input that is the output, as each
    step has both.
    """
    y = memory["x"] @ params["weight"].T
    return x, {"x": memory["x"], "y": y + params["bias"] if "bias" in params else y}


class WithoutGradient(torch.autograd.Function):
    """Autograd function of a `Linear`, whose backward pass raises an error."""

    @staticmethod
    def forward(ctx: Any, packed: PackedLinear, value: Any, *tensors: Any) -> Any:
        """Computes a layer. value: [..., in_features]. tensors: its parameters, which require gradients."""
        return packed(value)

    @staticmethod
    def backward(ctx: Any, *cotangents: Any) -> Any:
        """Raises `InputError`."""
        raise InputError(refused("has no gradients"))
