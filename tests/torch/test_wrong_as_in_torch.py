"""Wrong calls of layers and cells raise errors that code for torch.nn catches: of the class that torch.nn
raises, or of one derived from it.

Every call is made with torch.nn too, whose error is the oracle. `DIFFERENT` has the calls in which stepnet
differs by design, each with the reason.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.utils.rnn import PackedSequence

import stepnet.torch
from stepnet.errors import InputError, StepnetError

Package = Any
Call = Callable[[Package], Any]
pytestmark = [
    pytest.mark.filterwarnings("ignore:dropout option adds dropout"),
    pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors is in prototype stage"),
    pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor"),
    pytest.mark.filterwarnings("ignore:Sparse .* tensor support is in beta state"),
]
X, H, C = torch.ones(5, 2, 3), torch.zeros(1, 2, 4), torch.zeros(1, 2, 4)
ROW, STATE = torch.ones(2, 3), torch.zeros(2, 4)
DATA = torch.ones(6, 3)
WIDE: Any = torch.zeros(1, 2, 7)


def gru(*arguments: Any, **options: Any) -> Call:
    """A call of a GRU of 3 inputs and 4 units."""
    return lambda nn: nn.GRU(3, 4, **options)(*arguments)


def lstm(*arguments: Any, **options: Any) -> Call:
    return lambda nn: nn.LSTM(3, 4, **options)(*arguments)


def cell(name: str, *arguments: Any) -> Call:
    return lambda nn: getattr(nn, name)(3, 4)(*arguments)


def made(name: str, *arguments: Any, **options: Any) -> Call:
    return lambda nn: getattr(nn, name)(*arguments, **options)


def packed(
    sizes: Any, order: Any = None, dtype: torch.dtype = torch.int64, data: torch.Tensor = DATA
) -> Call:
    """A call of a GRU with a `PackedSequence` of these batch sizes, damaged or not."""

    def call(nn: Package) -> Any:
        back = None if order is None else torch.argsort(torch.tensor(order))
        given = PackedSequence(data, torch.tensor(sizes, dtype=dtype), order and torch.tensor(order), back)
        return nn.GRU(3, 4)(given)

    return call


def inference(of_parameters: bool) -> Call:
    """Training on a tensor that was made in inference mode, which autograd must not save."""

    def call(nn: Package) -> Any:
        with torch.inference_mode():
            x = torch.ones(5, 2, 3)
            layer = nn.GRU(3, 4) if of_parameters else None
        layer = nn.GRU(3, 4) if layer is None else layer
        return layer(x)[0].sum().backward()

    return call


def backward(spoil: Callable[[Any, torch.Tensor, torch.Tensor], Any]) -> Call:
    """A backward pass after a layer, its input or its outputs were changed."""

    def call(nn: Package) -> Any:
        layer, x = nn.GRU(3, 4), torch.ones(5, 2, 3, requires_grad=True)
        own = x.clone()
        outputs, _ = layer(own)
        spoil(layer, own, outputs)
        return outputs.sum().backward()

    return call


def changed(change: Callable[[Any], Any]) -> Call:
    """A call of a GRU with two layers after it was changed."""

    def call(nn: Package) -> Any:
        layer = nn.GRU(3, 4, 2)
        change(layer)
        return layer(X)

    return call


def without_gradients(nn: Package) -> Any:
    with torch.no_grad():
        outputs, _ = nn.GRU(3, 4)(X)
    return outputs.sum().backward()


def in_place(tensor: torch.Tensor) -> None:
    with torch.no_grad():
        tensor.mul_(2)


def all_of_int64(layer: Any) -> None:
    for parameter in layer.parameters():
        parameter.data = parameter.data.long()


def other_parameter(layer: Any, name: str, value: torch.Tensor) -> None:
    setattr(layer, name, torch.nn.Parameter(value))


WRONG: dict[str, Call] = {
    # shapes
    "features of the input": gru(torch.ones(5, 2, 7)),
    "an input of 4 axes": gru(torch.ones(1, 5, 2, 3)),
    "an input of 1 axis": gru(torch.ones(3)),
    "an input of no axis": gru(torch.tensor(1.0)),
    "rows of h": gru(X, torch.zeros(1, 3, 4)),
    "layers of h": gru(X, torch.zeros(2, 2, 4)),
    "units of h": gru(X, WIDE),
    "h without a batch": gru(X, torch.zeros(1, 4)),
    "h with a batch for one sequence": gru(X[:, 0], H),
    "h of one sequence, of other units": gru(X[:, 0], torch.zeros(1, 7)),
    "h of no axis": gru(X, torch.tensor(0.0)),
    "h and c for a GRU": gru(X, (H, C)),
    "a list with h for a GRU": gru(X, [H]),
    "h alone for an LSTM": lstm(X, H),
    "one state for an LSTM": lstm(X, (H,)),
    "three states for an LSTM": lstm(X, (H, C, C)),
    "no states for an LSTM": lstm(X, ()),
    "a dict of no states for an LSTM": lstm(X, {}),
    "h and c for an LSTM in one tensor": lstm(X, torch.stack([H, C])),
    "units of c": lstm(X, (H, WIDE)),
    "h of the units, not of the projection": lstm(X, (H, C), proj_size=2),
    "c of the projection, not of the units": lstm(X, (H[..., :2], C[..., :2]), proj_size=2),
    "h of one direction": gru(X, H, bidirectional=True),
    "batch first, h of the steps": gru(X, torch.zeros(1, 2, 4), batch_first=True),
    # dtypes
    "an input of float64": gru(X.double()),
    "an input of float16": gru(X.half()),
    "an input of int64": gru(X.long()),
    "an input of bool": gru(X.bool()),
    "an input of complex64": gru(X.to(torch.complex64)),
    "h of float64": gru(X, H.double()),
    "h of int64": gru(X, H.long()),
    "h of complex64": gru(X, H.to(torch.complex64)),
    "c of float64": lstm(X, (H, C.double())),
    "one parameter of float64": changed(
        lambda layer: other_parameter(layer, "weight_hh_l0", torch.ones(12, 4, dtype=torch.float64))
    ),
    "a layer of int64": changed(
        lambda layer: [setattr(p, "data", p.data.long()) for p in layer.parameters()]
    ),
    # devices
    "h on another device": gru(X, H.to("meta")),
    "an input on another device": gru(X.to("meta"), H),
    "a layer on another device": gru(X, device="meta"),
    "a device that is not known": made("GRU", 3, 4, device="no such device"),
    # layouts
    "a sparse input": lambda nn: nn.GRU(3, 4)(X.to_sparse()),
    "an input of compressed rows": lambda nn: nn.GRU(3, 4)(X[:, 0].to_sparse_csr()),
    "sparse h": lambda nn: nn.GRU(3, 4)(X, H.to_sparse()),
    "an input of oneDNN's layout": lambda nn: nn.GRU(3, 4)(X.to_mkldnn()),
    "a quantized input": lambda nn: nn.GRU(3, 4)(torch.quantize_per_tensor(X, 0.1, 0, torch.quint8)),
    # packed sequences
    "packed: features": packed([3, 2, 1], data=torch.ones(6, 7)),
    "packed: data of 3 axes": packed([3, 2, 1], data=torch.ones(6, 2, 3)),
    "packed: sizes that rise": packed([1, 2, 3]),
    "packed: too few values": packed([4, 2, 1]),
    "packed: too many values": packed([3, 1, 1]),
    "packed: no sizes": packed([]),
    "packed: negative sizes": packed([7, -1]),
    "packed: a size of 0": packed([3, 0, 3]),
    "packed: sizes of 2 axes": packed([[3], [2], [1]]),
    "packed: sizes of floats": packed([3, 2, 1], dtype=torch.float32),
    "packed: an order of too few": packed([3, 2, 1], order=[1, 0]),
    "packed: an order beyond the rows": packed([3, 2, 1], order=[0, 1, 5]),
    # kinds of values
    "an array": gru(np.ones((5, 2, 3), np.float32)),
    "a list": gru([[1.0, 2.0, 3.0]]),
    "None": gru(None),
    "text": gru("words"),
    "a number": gru(3),
    "h as an array": gru(X, np.zeros((1, 2, 4), np.float32)),
    "no input": gru(),
    "an argument too many": gru(X, H, H),
    "an argument that is not known": lambda nn: nn.GRU(3, 4)(X, initial=H),
    # training
    "an input made in inference mode": inference(of_parameters=False),
    "a layer made in inference mode": inference(of_parameters=True),
    "backward twice": backward(lambda layer, x, outputs: outputs.sum().backward()),
    "an input changed before backward": backward(lambda layer, x, outputs: in_place(x)),
    "a weight changed before backward": backward(lambda layer, x, outputs: in_place(layer.weight_hh_l0)),
    "outputs without gradients": without_gradients,
    # layers
    "no inputs": made("GRU", 0, 4),
    "no units": made("GRU", 3, 0),
    "no layers": made("GRU", 3, 4, 0),
    "units that are no whole number": made("GRU", 3, 4.5),
    "bias that is no bool": made("GRU", 3, 4, bias=1),
    "batch_first that is no bool": made("GRU", 3, 4, batch_first=0),
    "a dropout above 1": made("GRU", 3, 4, 2, dropout=1.5),
    "a dropout that is no number": made("GRU", 3, 4, 2, dropout="much"),
    "a projection of a GRU": made("GRU", 3, 4, proj_size=2),
    "a projection as wide as the units": made("LSTM", 3, 4, proj_size=4),
    "a negative projection": made("LSTM", 3, 4, proj_size=-1),
    "a nonlinearity that is not known": made("RNN", 3, 4, nonlinearity="sine"),
    "integers as parameters": made("GRU", 3, 4, dtype=torch.int64),
    "a setting that is not known": made("GRU", 3, 4, peephole=True),
    "a weight of another shape": changed(
        lambda layer: other_parameter(layer, "weight_hh_l0", torch.ones(12, 5))
    ),
    "a bias of another shape": changed(lambda layer: other_parameter(layer, "bias_ih_l1", torch.ones(5))),
    "a weight that is missing": changed(lambda layer: delattr(layer, "weight_hh_l0")),
    "a state_dict of other shapes": lambda nn: nn.GRU(3, 4).load_state_dict(nn.GRU(3, 5).state_dict()),
    "a state_dict without layers": lambda nn: nn.GRU(3, 4, 2).load_state_dict(nn.GRU(3, 4).state_dict()),
    # sequences of no steps, and batches of no sequences, which run
    "no steps": gru(torch.ones(0, 2, 3)),
    "no steps, with states": lstm(torch.ones(0, 2, 3), (H, C)),
    "no steps, without a batch": lambda nn: nn.RNN(3, 4)(torch.ones(0, 3)),
    "no steps, batch_first": gru(torch.ones(2, 0, 3), batch_first=True, num_layers=2, bidirectional=True),
    "no steps and no sequences": lstm(torch.ones(0, 0, 3)),
    "no sequences": gru(torch.ones(5, 0, 3)),
    "no sequences, batch_first": lstm(torch.ones(0, 5, 3), batch_first=True),
    "packed: no sequences": packed([], data=torch.ones(0, 3)),
    # cells
    "cell: no rows": cell("LSTMCell", torch.ones(0, 3)),
    "cell: features": cell("GRUCell", torch.ones(2, 7)),
    "cell: units of h": cell("RNNCell", ROW, torch.zeros(2, 7)),
    "cell: rows of h": cell("GRUCell", ROW, torch.zeros(3, 4)),
    "cell: h of another number of axes": cell("GRUCell", ROW, torch.zeros(4)),
    "cell: an input of 3 axes": cell("GRUCell", X),
    "cell: an input of no axis": cell("GRUCell", torch.tensor(1.0)),
    "cell: h of 4 axes": cell("RNNCell", ROW, torch.zeros(1, 1, 2, 4)),
    "cell: h alone for an LSTM": cell("LSTMCell", ROW, STATE),
    "cell: units of c": cell("LSTMCell", ROW, (STATE, torch.zeros(2, 7))),
    "cell: an input of float64": cell("GRUCell", ROW.double()),
    "cell: h of float64": cell("GRUCell", ROW, STATE.double()),
    "cell: a sparse input": lambda nn: nn.GRUCell(3, 4)(ROW.to_sparse()),
    "cell: an array": cell("GRUCell", np.ones((2, 3), np.float32)),
    "cell: h on another device": cell("GRUCell", ROW, STATE.to("meta")),
}

NO_TENSOR = "torch.nn fails where it reads the first attribute; the message here says what to give"
DENSE = "torch.nn multiplies a sparse row; stepnet runs dense tensors, as the message says"
DAMAGED = "torch.nn leaves values out, or fails where it reads a size; the message here says what is damaged"
NO_OPERATION = (
    "torch.nn's is a NotImplementedError, of an operation that lacks this kind; both are RuntimeErrors"
)
DIFFERENT: dict[str, str] = {
    **dict.fromkeys(("an array", "a list", "None", "text", "a number", "cell: an array"), NO_TENSOR),
    "cell: a sparse input": DENSE,
    **dict.fromkeys(("packed: too many values", "packed: no sizes", "packed: sizes of 2 axes"), DAMAGED),
    "packed: sizes of floats": DAMAGED,
    "packed: no sequences": "torch.nn fails where it reads the first size; here the results are empty",
    **dict.fromkeys(("an input of oneDNN's layout", "a quantized input"), NO_OPERATION),
    "a weight that is missing": "torch.nn goes on with the weight that was deleted",
}
"""The calls in which stepnet differs by design, each with the reason."""


def raised(call: Call, package: Package) -> Exception | None:
    torch.manual_seed(0)
    try:
        call(package)
    except Exception as error:
        return error
    return None


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_call_raises_what_torch_raises(name: str):
    theirs, ours = (raised(WRONG[name], package) for package in (torch.nn, stepnet.torch))
    is_same = (theirs is None) == (ours is None) and isinstance(ours, type(theirs))
    assert is_same == (name not in DIFFERENT), (theirs, ours)
    if name in DIFFERENT and ours is not None:
        assert isinstance(ours, ValueError | RuntimeError | AttributeError)


def test_errors_are_what_code_for_torch_catches():
    with pytest.raises(RuntimeError, match="Expected sequence length to be larger than 0 in RNN"):
        gru(torch.ones(0, 2, 3))(stepnet.torch)
    with pytest.raises(InputError, match=r"the input of GRU is torch\.sparse_coo; .* take dense tensors"):
        stepnet.torch.GRU(3, 4)(X.to_sparse())
    with pytest.raises(
        InputError, match=r"batch_sizes is torch\.float32\[3\], and it should be whole numbers"
    ):
        packed([3, 2, 1], dtype=torch.float32)(stepnet.torch)
    with pytest.raises(InputError, match=r"^the input of GRUCell is torch\.float64 on cpu, and weight_ih is"):
        stepnet.torch.GRUCell(3, 4, bias=False)(ROW.double())
    with pytest.raises(RuntimeError, match="lstm expects two hidden states"):
        lstm(X, (H, C, C))(stepnet.torch)
    assert issubclass(StepnetError, RuntimeError)
    assert issubclass(StepnetError, ValueError)
