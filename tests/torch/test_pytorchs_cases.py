"""PyTorch's own tests of its recurrent modules, case by case, with stepnet's classes in their place.

The names are those of PyTorch 2.13's test/test_nn.py, test/test_modules.py and the samples of
torch/testing/_internal/common_modules.py; what each asks is written here anew. Each case runs with torch.nn
too, which shows that it is PyTorch's. `ELSEWHERE` says what cannot run so, and why.
"""

import copy
import io
import itertools
import pickle
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pack_sequence, pad_packed_sequence

import stepnet.torch
from tests.torch.layer_cases import assert_same, numbers, tensors

LAYERS, CELLS = ("RNN", "GRU", "LSTM"), ("RNNCell", "GRUCell", "LSTMCell")
Package = Any
pytestmark = [
    pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN"),
    pytest.mark.filterwarnings("ignore:dropout option adds dropout"),
]


def close(found: Any, right: Any) -> None:
    assert_same(dict(enumerate(tensors(found))), dict(enumerate(tensors(right))))  # type: ignore[arg-type]


def paired(name: str, state: Any) -> Any:
    return (state, state) if name.startswith("LSTM") else state


# ---- test_nn.py: cells -------------------------------------------------------------------------------------


def rnn_cell(nn: Package) -> None:
    for name, bias in itertools.product(("RNNCell", "GRUCell"), (True, False)):
        cell, x, h = getattr(nn, name)(10, 20, bias=bias), torch.randn(3, 10), torch.randn(3, 20)
        for _ in range(6):
            h = cell(x, h)
        h.sum().backward()
        assert all(one.grad.any() for one in cell.parameters())


def lstm_cell(nn: Package) -> None:
    for bias in (True, False):
        cell, x = nn.LSTMCell(10, 20, bias=bias), torch.randn(3, 10)
        state = torch.randn(3, 20), torch.randn(3, 20)
        for _ in range(6):
            state = cell(x, state)
        (state[0] + state[1]).sum().backward()
        assert all(one.grad.any() for one in cell.parameters())


def rnn_cell_forward_zero_hidden_size(nn: Package) -> None:
    made = nn.RNNCell(10, 0, nonlinearity="relu"), nn.RNNCell(10, 0, nonlinearity="tanh"), nn.GRUCell(10, 0)
    for cell in made:
        assert cell(torch.randn(3, 10), torch.randn(3, 0)).shape == (3, 0)


def cells_that_do_not_fit(nn: Package, x: torch.Tensor, state: torch.Tensor) -> None:
    for name in CELLS:
        good = torch.zeros(3, 20)
        states = [(state, good), (good, state)] if name == "LSTMCell" else [state]
        for one in states if state.shape != good.shape else [paired(name, good)]:
            with pytest.raises(RuntimeError):
                getattr(nn, name)(10, 20)(x, one)


def rnn_cell_forward_input_size(nn: Package) -> None:
    cells_that_do_not_fit(nn, torch.randn(3, 11), torch.randn(3, 20))


def rnn_cell_forward_hidden_size(nn: Package) -> None:
    cells_that_do_not_fit(nn, torch.randn(3, 10), torch.randn(3, 21))


def rnn_cell_no_broadcasting(nn: Package) -> None:
    for x, h in (((3, 10), (1, 20)), ((3, 10), (3, 1)), ((3, 1), (3, 20))):
        cells_that_do_not_fit(nn, torch.randn(*x), torch.randn(*h))


def lstmcell_backward_only_one_output_grad(nn: Package) -> None:
    for place in (0, 1):
        cell, x = nn.LSTMCell(2, 3), torch.ones(1, 2, requires_grad=True)
        cell(x)[place].sum().backward()
        assert x.grad is not None
        assert x.grad.any()


# ---- test_nn.py: layers ------------------------------------------------------------------------------------


def layers_that_do_not_fit(nn: Package, proj_size: int) -> None:
    layers, rows, steps, inputs, hidden, bad = 2, 4, 6, 3, 5, 7
    sizes = {"proj_size": proj_size} if proj_size else {}
    right = (steps, rows, inputs), (layers, rows, proj_size or hidden), (layers, rows, hidden)
    for name in ("LSTM",) if proj_size else LAYERS:
        for which, axis in ((0, 1), (1, 1), (2, 1), (0, 2), (1, 2), (2, 2), (1, 0), (2, 0)):
            if which == 2 and name != "LSTM":
                continue
            shapes = [list(shape) for shape in right]
            shapes[which][axis] = bad
            x, *states = (torch.zeros(shape) for shape in shapes)
            module = getattr(nn, name)(inputs, hidden, layers, **sizes)
            with pytest.raises(RuntimeError):
                module(x, tuple(states) if name == "LSTM" else states[0])


def rnn_args_check(nn: Package) -> None:
    layers_that_do_not_fit(nn, 0)


def projections_lstm_args_check(nn: Package) -> None:
    layers_that_do_not_fit(nn, 2)


def cudnn_forward_exception(nn: Package) -> None:
    for name, options in (("LSTM", {}), ("LSTM", {"proj_size": 10}), ("GRU", {}), ("RNN", {})):
        module = getattr(nn, name)(10, 20, batch_first=True, **options)
        with pytest.raises(RuntimeError, match=r"Expected hidden.*size.*got"):
            module(torch.zeros(2, 3, 10), paired(name, torch.zeros(1, 2, 19)))
        with pytest.raises(RuntimeError, match=r"input\.size\(-1\) must be equal to input_size"):
            module(torch.zeros(2, 3, 3))


def rnn_initial_hidden_state(nn: Package) -> None:
    for name in LAYERS:
        module, x = getattr(nn, name)(10, 20, 2), torch.randn(10, 32, 10)
        close(module(x), module(x, paired(name, torch.zeros(2, 32, 20))))


def projections_lstm_initial_hidden_state(nn: Package) -> None:
    for bidirectional in (False, True):
        module, x = nn.LSTM(30, 20, 2, bidirectional=bidirectional, proj_size=10), torch.randn(10, 32, 30)
        count = 4 if bidirectional else 2
        close(module(x), module(x, (torch.zeros(count, 32, 10), torch.zeros(count, 32, 20))))


def projections_errors_on_gru_and_rnn(nn: Package) -> None:
    for name in ("RNN", "GRU"):
        with pytest.raises(ValueError, match="proj_size argument is only supported for LSTM, not RNN or GRU"):
            getattr(nn, name)(30, 20, 2, proj_size=10)


def rnn_input_size_zero(nn: Package) -> None:
    for name in LAYERS:
        with pytest.raises(ValueError, match="input_size must be greater than zero"):
            getattr(nn, name)(0, 3)


def rnn_nonlinearity(nn: Package) -> None:
    assert nn.RNN(1, 10).nonlinearity == "tanh"
    assert nn.RNN(1, 10, nonlinearity="relu").nonlinearity == "relu"
    with pytest.raises(ValueError, match="Unknown nonlinearity"):
        nn.RNN(1, 10, nonlinearity="garbage")


def rnn_nonlinearity_passed_as_arg(nn: Package) -> None:
    module = nn.RNN(2, 3, 1, "relu")
    assert module.nonlinearity == "relu"
    assert (module(torch.randn(4, 5, 2))[0] >= 0).all()


def rnn_dropout(nn: Package) -> None:
    """With all weights 1 and zeros to begin with, the second layer gives what is left of ten units."""
    for share in (0.0, 0.276, 0.731, 1.0):
        for train in (True, False):
            module = nn.RNN(10, 1000, 2, bias=False, dropout=share, nonlinearity="relu").train(train)
            with torch.no_grad():
                for one in module.parameters():
                    one.fill_(1)
            outputs, h = module(torch.ones(1, 1, 10), torch.zeros(2, 1, 1000))
            assert (h[0] == 10).all()
            assert (outputs[0, 0] == outputs[0, 0, 0]).all()
            kept = outputs[0, 0, 0].item() / 10_000 * (1 - share if train and share < 1 else 1)
            wanted = 1 - share if train else 1
            assert abs(kept - wanted) < (0.05 if train else 1e-5)


def rnn_dropout_state(nn: Package) -> None:
    """Dropout differs from call to call, and not without training; a copy by pickle goes on."""
    for share in (0.0, 0.1234):
        module, x = nn.RNN(100, 100, 2, bias=False, dropout=share, nonlinearity="relu"), torch.rand(1, 1, 100)
        first, second = module(x)[0], module(x)[0]
        third = pickle.loads(pickle.dumps(module))(x)[0]
        assert torch.equal(first, second) == (share == 0)
        assert torch.equal(first, third) == (share == 0)
        module.eval()
        assert torch.equal(module(x)[0], module(x)[0])


def rnn_change_dropout(nn: Package) -> None:
    module, x = nn.RNN(100, 100, 2, dropout=0, nonlinearity="relu"), torch.rand(3, 2, 100)
    whole = module(x)[0]
    module.dropout = 0.5
    assert not torch.equal(module(x)[0], whole)
    module.dropout = 0
    close(module(x)[0], whole)
    module.dropout = 0.5
    module.eval()
    close(module(x)[0], whole)


def weight_tying(nn: Package) -> None:
    """test_cudnn_weight_tying, without cuDNN: one bias in both directions, changed by an optimiser."""
    for name in LAYERS:
        module = getattr(nn, name)(10, 20, bidirectional=True, batch_first=True)
        module.bias_ih_l0_reverse = module.bias_ih_l0
        optimiser, x = torch.optim.SGD(module.parameters(), 0.1), torch.randn(5, 4, 10)
        before = module(x)[0]
        before.sum().backward()
        assert sum(1 for _ in module.parameters()) == 7
        optimiser.step()
        with torch.no_grad():
            after = module(x)[0]
            other = getattr(torch.nn, name)(10, 20, bidirectional=True, batch_first=True)
            other.load_state_dict(module.state_dict())
            close(after, other(x)[0])
            assert not torch.equal(after, before)


def weights_of_another_memory(nn: Package) -> None:
    """test_cudnn_weight_format, without cuDNN: parameters set to other memory are read there."""
    for name in LAYERS:
        module, x = getattr(nn, name)(10, 20, batch_first=True), torch.randn(5, 4, 10)
        before, memory = module(x)[0], module.weight_hh_l0.detach().clone()
        with torch.no_grad():
            module.weight_hh_l0.set_(memory)
        close(module(x)[0], before)
        memory.fill_(0.5)
        assert not torch.equal(module(x)[0], before)


def rnn_weight_norm(nn: Package) -> None:
    for name in LAYERS:
        module, x = getattr(nn, name)(10, 20), torch.randn(3, 2, 10)
        right = module(x)
        normed = torch.nn.utils.parametrizations.weight_norm(module, "weight_ih_l0")
        close(normed(x), right)
        torch.nn.utils.parametrize.remove_parametrizations(normed, "weight_ih_l0")
        close(module(x), right)


# ---- test_nn.py: for each device ---------------------------------------------------------------------------


def variable_sequence(nn: Package) -> None:
    """A batch of lengths gives each sequence's own results; gradients of the input too."""
    lengths = [6, 4, 2, 1]
    for layers, bidirectional, batch_first in ((1, False, False), (2, True, False), (2, False, True)):
        module = nn.LSTM(
            3, 4, layers, bidirectional=bidirectional, batch_first=batch_first, dtype=torch.float64
        )
        x = numbers(4, 6, 3) if batch_first else numbers(6, 4, 3)
        x, state = x.requires_grad_(), torch.zeros(layers * (2 if bidirectional else 1), 4, 4).double()
        outputs, last = module(pack_padded_sequence(x, lengths, batch_first), (state, state))
        y = pad_packed_sequence(outputs, batch_first)[0]
        found, all_last = list[torch.Tensor](), list[Any]()
        for row, length in enumerate(lengths):
            one = x[row : row + 1, :length] if batch_first else x[:length, row : row + 1]
            part, final = module(one, (state[:, row : row + 1],) * 2)
            found.append(part)
            all_last.append(final)
            close(y[row : row + 1, :length] if batch_first else y[:length, row : row + 1], part)
        for kind in (0, 1):
            close(last[kind], torch.cat([final[kind] for final in all_last], 1))
        (gradient,) = torch.autograd.grad(y.square().sum(), x)
        (right,) = torch.autograd.grad(sum(one.square().sum() for one in found), x)  # type: ignore[arg-type]
        close(gradient, right)


def grad_and_gradgrad(nn: Package) -> None:
    """test_LSTM_grad_and_gradgrad, test_GRU_grad_and_gradgrad; each with and without biases is a sample."""
    for name, bias in (("LSTM", True), ("GRU", False)):
        module = getattr(nn, name)(2, 3, bias=bias, dtype=torch.float64)
        x = numbers(2, 2, 2).requires_grad_()
        inputs = (x, *module.parameters())

        def call(x: torch.Tensor, *_: torch.Tensor, module: Any = module) -> Any:
            return module(x)[0]

        assert torch.autograd.gradcheck(call, inputs, fast_mode=True)
        assert torch.autograd.gradgradcheck(call, inputs, fast_mode=True)


def rnn_retain_variables(nn: Package) -> None:
    for name in LAYERS:
        module, x = getattr(nn, name)(10, 20, 2), torch.randn(5, 6, 10, requires_grad=True)
        loss = module(x)[0].sum()
        found = [torch.autograd.grad(loss, [x, *module.parameters()], retain_graph=True) for _ in range(3)]
        for other in found[1:]:
            assert all(torch.equal(a, b) for a, b in zip(found[0], other, strict=True))


def batch_sizes_of_a_packed_sequence(nn: Package) -> None:
    """Outputs are packed as the input is, in its order."""
    xs = [torch.randn(length, 10) for length in (2, 5, 3)]
    given = pack_sequence(xs, enforce_sorted=False)
    for name in LAYERS:
        outputs, _ = getattr(nn, name)(10, 20)(given)
        assert isinstance(outputs, PackedSequence)
        for one, other in zip(outputs[1:], given[1:], strict=True):
            assert one is not None
            assert other is not None
            assert torch.equal(one, other)


# ---- test_modules.py, over the samples of common_modules.py ------------------------------------------------


@dataclass(frozen=True)
class Sample:
    """A module and what it is called with: a sequence or a row without a batch, with a state or not."""

    name: str
    options: dict[str, Any]
    with_state: bool

    def made(self, nn: Package, dtype: torch.dtype = torch.float64) -> tuple[Any, Any, Any]:
        """The module, the sequence or row, and the state."""
        torch.manual_seed(0)
        layer, options = self.name in LAYERS, self.options
        module = getattr(nn, self.name)(*((2, 3) if layer else (5, 10)), dtype=dtype, **options)
        shapes = [(10,), (10,)]
        if layer:
            count = 4 if options["bidirectional"] else 2
            shapes = [(count, options.get("proj_size") or 3), (count, 3)]
        states = [numbers(*shape, dtype=dtype) for shape in shapes]
        state = (tuple(states) if self.name.startswith("LSTM") else states[0]) if self.with_state else None
        return module, numbers(*((3, 2) if layer else (5,)), dtype=dtype), state


def samples() -> Iterator[Sample]:
    for bias, batch_first, both, extra in itertools.product((False, True), repeat=4):
        further: dict[str, dict[str, Any]] = {
            "RNN": {"nonlinearity": "relu" if extra else "tanh"},
            "GRU": {},
            "LSTM": {"proj_size": 2 if extra else 0},
        }
        options = {"bias": bias, "batch_first": batch_first, "bidirectional": both, "num_layers": 2}
        for name, with_state in itertools.product(LAYERS, (False, True)):
            yield Sample(name, options | further[name], with_state)
    for name, bias in itertools.product(CELLS, (True, False)):
        yield Sample(name, {"bias": bias}, True)


SAMPLES = list(samples())


def modules_forward(module: Any, x: torch.Tensor, state: Any) -> None:
    """A sequence without a batch is a batch of one."""
    is_cell = isinstance(module, torch.nn.RNNCellBase)
    axis = 0 if is_cell or module.batch_first else 1
    rows = 0 if is_cell else 1
    whole = None
    if state is not None:
        whole = (
            tuple(one.unsqueeze(rows) for one in state) if isinstance(state, tuple) else state.unsqueeze(rows)
        )
    found, right = module(x, state), module(x.unsqueeze(axis), whole)
    if is_cell:
        close(
            found,
            tuple(one.squeeze(0) for one in right) if isinstance(right, tuple) else right.squeeze(0),
        )
        return
    close(found[0], right[0].squeeze(axis))
    close(found[1], [one.squeeze(1) for one in tensors(right[1])])


def modules_factory_kwargs(nn: Package) -> None:
    for dtype in (torch.float32, torch.float64):
        for sample in SAMPLES[::7]:
            assert {one.dtype for one in sample.made(nn, dtype)[0].parameters()} == {dtype}
    assert nn.GRU(2, 3, device="meta").weight_hh_l0.device.type == "meta"
    assert nn.GRUCell(2, 3, device="meta").weight_hh.device.type == "meta"


def modules_pickle(module: Any, x: torch.Tensor, state: Any) -> None:
    right = module(x, state)
    close(pickle.loads(pickle.dumps(module))(x, state), right)
    saved = io.BytesIO()
    torch.save(module.state_dict(), saved)
    saved.seek(0)
    other = copy.deepcopy(module)
    other.reset_parameters()
    other.load_state_dict(torch.load(saved))
    close(other(x, state), right)


def modules_grad(module: Any, x: torch.Tensor, state: Any) -> None:
    inputs = x.requires_grad_(), *module.parameters()

    def call(x: torch.Tensor, *_: torch.Tensor) -> Any:
        return tuple(tensors(module(x, state)))

    assert torch.autograd.gradcheck(call, inputs, fast_mode=True)
    assert torch.autograd.gradgradcheck(call, inputs, fast_mode=True)


def modules_non_contiguous_tensors(module: Any, x: torch.Tensor, state: Any) -> None:
    def apart(one: torch.Tensor) -> torch.Tensor:
        return one.repeat_interleave(2, -1)[..., ::2]

    strange = (
        tuple(map(apart, state)) if isinstance(state, tuple) else None if state is None else apart(state)
    )
    assert not apart(x).is_contiguous()
    close(module(apart(x), strange), module(x, state))


def modules_repr_and_hooks(module: Any, x: torch.Tensor, state: Any) -> None:
    """test_repr, and the hooks that test_modules.py calls for."""
    seen, name = list[str](), type(module).__name__
    assert repr(module).startswith(f"{name}({module.input_size}, {module.hidden_size}")
    module.register_forward_pre_hook(lambda *_: seen.append("before"))
    module.register_forward_hook(lambda *_: seen.append("after"))
    module.register_full_backward_hook(lambda *_: seen.append("backward"))
    torch.stack([one.sum() for one in tensors(module(x.requires_grad_(), state))]).sum().backward()
    assert seen == ["before", "after", "backward"]


def modules_errors(nn: Package) -> None:
    """The error samples: wrong sizes of the input and the state, wrong axes, and a row too many."""
    for name in LAYERS:
        module = getattr(nn, name)(10, 20, 2)
        with pytest.raises(RuntimeError, match=r"input\.size\(-1\) must be equal to input_size"):
            module(torch.zeros(3, 11))
        with pytest.raises(RuntimeError, match="Expected hidden"):
            module(torch.zeros(3, 2, 10), paired(name, torch.zeros(2, 2, 21)))
    for name in CELLS:
        cell = getattr(nn, name)(10, 20)
        with pytest.raises(RuntimeError):
            cell(torch.zeros(3, 11), paired(name, torch.zeros(3, 20)))
        with pytest.raises(ValueError, match="Expected input to be 1D or 2D, got 3D instead"):
            cell(torch.zeros(3, 1, 10))


CASES: dict[str, Callable[[Package], None]] = {
    "test_RNN_cell": rnn_cell,
    "test_RNN_cell_forward_zero_hidden_size": rnn_cell_forward_zero_hidden_size,
    "test_RNN_cell_forward_input_size": rnn_cell_forward_input_size,
    "test_RNN_cell_forward_hidden_size": rnn_cell_forward_hidden_size,
    "test_RNN_cell_no_broadcasting": rnn_cell_no_broadcasting,
    "test_LSTM_cell": lstm_cell,
    "test_LSTM_cell_forward_input_size": rnn_cell_forward_input_size,
    "test_LSTM_cell_forward_hidden_size": rnn_cell_forward_hidden_size,
    "test_lstmcell_backward_only_one_output_grad": lstmcell_backward_only_one_output_grad,
    "test_cudnn_forward_exception": cudnn_forward_exception,
    "test_rnn_args_check": rnn_args_check,
    "test_projections_lstm_args_check": projections_lstm_args_check,
    "test_rnn_initial_hidden_state": rnn_initial_hidden_state,
    "test_projections_lstm_initial_hidden_state": projections_lstm_initial_hidden_state,
    "test_projections_errors_on_gru_and_rnn": projections_errors_on_gru_and_rnn,
    "test_RNN_input_size_zero": rnn_input_size_zero,
    "test_RNN_nonlinearity": rnn_nonlinearity,
    "test_RNN_nonlinearity_passed_as_arg": rnn_nonlinearity_passed_as_arg,
    "test_RNN_dropout": rnn_dropout,
    "test_RNN_dropout_state": rnn_dropout_state,
    "test_RNN_change_dropout": rnn_change_dropout,
    "test_cudnn_weight_tying": weight_tying,
    "test_cudnn_weight_format": weights_of_another_memory,
    "test_rnn_weight_norm": rnn_weight_norm,
    "test_variable_sequence": variable_sequence,
    "test_LSTM_grad_and_gradgrad, test_GRU_grad_and_gradgrad": grad_and_gradgrad,
    "test_rnn_retain_variables": rnn_retain_variables,
    "test_packed_sequence": batch_sizes_of_a_packed_sequence,
    "test_modules: test_factory_kwargs": modules_factory_kwargs,
    "test_modules: test_errors": modules_errors,
}

# What is asked of each n-th sample, and in `make test` of each m-th of those: of all layers and of a cell.
SAMPLED: dict[str, tuple[Callable[[Any, torch.Tensor, Any], None], int, int]] = {
    "test_modules: test_forward": (modules_forward, 1, 38),
    "test_modules: test_pickle, test_save_load_state_dict": (modules_pickle, 1, 34),
    "test_modules: test_non_contiguous_tensors": (modules_non_contiguous_tensors, 1, 66),
    "test_modules: test_repr, test_forward_hooks": (modules_repr_and_hooks, 1, 66),
    "test_modules: test_grad, test_gradgrad": (modules_grad, 5, 26),
}

CUDA = "it needs CUDA, where torch.nn's own forward runs"
HALF = "refused: only float32 and float64 are supported"
ELSEWHERE = {
    "test_error_RNN_seq_len_zero": "test_wrong_as_in_torch.py makes these calls",
    "test_RNN_cpu_vs_cudnn_no_dropout": CUDA,
    "test_RNN_cpu_vs_cudnn_with_dropout": CUDA,
    "test_RNN_cudnn_weight_norm": CUDA,
    "test_cudnn_rnn_dropout_states_device": CUDA,
    "test_rnn_check_device": CUDA,
    "test_projections_lstm_check_device": CUDA,
    "test_pack_sequence_batch_sizes_throw": CUDA,
    "test_modules: test_cpu_gpu_parity": CUDA,
    "test_modules: test_multiple_device_transfer": CUDA,
    "test_rnn_fp16": HALF,
    "test_LSTM_differentiable_backward_using_oneDNN": HALF,
}


THEIRS = pytest.param(torch.nn, id="torch.nn", marks=pytest.mark.long(every=20))
OURS = pytest.param(stepnet.torch, id="stepnet.torch", marks=pytest.mark.long(every=2, of="ours"))


@pytest.mark.parametrize("package", [THEIRS, OURS])
@pytest.mark.parametrize("case", CASES)
def test_a_case_of_pytorch(case: str, package: Package):
    torch.manual_seed(0)
    CASES[case](package)


def sampled() -> Iterator[Any]:
    """Each class for each sample that it is asked of; torch.nn rarely, as for other cases."""
    for nn, (name, (_, each, part)) in itertools.product((torch.nn, stepnet.torch), SAMPLED.items()):
        every = len(SAMPLES) if nn is torch.nn else part
        for place in range(0, len(SAMPLES), each):
            marks = pytest.mark.long(every=every, of=f"{name} {nn}")
            yield pytest.param(nn, name, SAMPLES[place], id=f"{name}-{nn.__name__}-{place}", marks=marks)


@pytest.mark.parametrize(("package", "name", "sample"), list(sampled()))
def test_a_sample_of_pytorch(package: Package, name: str, sample: Sample):
    SAMPLED[name][0](*sample.made(package))


def test_every_case_stands_once():
    names = [name.split(": ")[-1] for key in (*CASES, *SAMPLED, *ELSEWHERE) for name in key.split(", ")]
    assert len(set(names)) == len(names)
