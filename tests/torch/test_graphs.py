"""torch.compile and torch.export hold a recurrence as one operator: no graph break, and right gradients."""

import copy
import gc
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch._dynamo.exc import Unsupported
from torch.fx.experimental.proxy_tensor import make_fx

import stepnet.torch
from stepnet.errors import InputError
from stepnet.torch.keys import runnable_of
from tests.torch.layer_cases import (
    BATCH,
    FORMS,
    HIDDEN,
    INPUTS,
    STEPS,
    Case,
    answers,
    assert_same,
    numbers,
    packed,
)

pytestmark = pytest.mark.filterwarnings("ignore")  # those of torch's compiler about itself


@pytest.fixture(autouse=True)
def traced() -> Iterator[None]:
    """torch.compile takes in what is a torch.nn.GRU, LSTM or RNN where it is asked to."""
    torch.compiler.reset()
    with torch._dynamo.config.patch(allow_rnn=True):
        yield


class Compiled(torch.nn.Module):
    """A module that is called as one graph."""

    def __init__(self, module: Any, backend: str) -> None:
        super().__init__()
        self.call = torch.compile(module, backend=backend, fullgraph=True)
        self.own, self.batch_first = module, getattr(module, "batch_first", False)

    def forward(self, *given: Any) -> Any:
        return self.call(*given)

    def named_parameters(self, *given: Any, **options: Any) -> Any:
        return self.own.named_parameters()


CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "GRU": ("GRU", {}),
    "LSTM": ("LSTM", {"num_layers": 2, "bidirectional": True, "proj_size": 2, "batch_first": True}),
    "RNN": ("RNN", {"bias": False}),
}


@pytest.mark.long(every=5)
@pytest.mark.parametrize("with_states", [True, False])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("case", CASES)
def test_a_layer_is_one_graph(case: str, form: str, with_states: bool):
    made = Case(*CASES[case])
    ours = made.modules()[1]
    states = made.states(ours) if with_states else []
    right = answers(ours, FORMS[form], states)
    assert_same(answers(Compiled(ours, "aot_eager"), FORMS[form], states), right)


def test_dropout_between_layers_is_in_the_graph():
    ours = Case("GRU", {"num_layers": 2, "dropout": 0.5}).modules()[1]
    right = answers(ours, FORMS["padded"], [])
    assert_same(answers(Compiled(ours, "eager"), FORMS["padded"], []), right)


@pytest.mark.long
def test_machine_code_of_torch_around_it(request: pytest.FixtureRequest):
    if not request.config.getoption("--long"):
        pytest.skip("--long is missing: PyTorch's compiler of C++ takes ten seconds")
    model = torch.nn.Sequential(torch.nn.Linear(INPUTS, INPUTS), stepnet.torch.GRU(INPUTS, HIDDEN))
    x, found = numbers(STEPS, BATCH, INPUTS, dtype=torch.float32), []
    # Torch builds its headers ahead, and looks for vector instructions, for more code than there is here.
    quick = {"cpp_cache_precompile_headers": False, "cpp.simdlen": 1}
    for run in (model, torch.compile(model, fullgraph=True, options=quick)):
        model.zero_grad()
        outputs, _ = run(x)
        outputs.square().sum().backward()
        found.append({"y": outputs} | {name: one.grad for name, one in model.named_parameters()})
    assert_same(found[1], found[0])


def test_nested_tensors_are_in_the_graph():
    ours = Case("GRU").modules()[1]
    values, bounds = numbers(7, INPUTS).requires_grad_(), torch.tensor([0, 2, 2, 7])
    given = torch.nested.nested_tensor_from_jagged(values, bounds)
    found = []
    for run in (ours, torch.compile(ours, backend="aot_eager", fullgraph=True)):
        ours.zero_grad()
        outputs, h = run(given)
        (gradient,) = torch.autograd.grad(h.square().sum() + outputs.values().sum(), values)
        found.append({"y": outputs.values(), "h": h, "x": gradient})
    assert_same(found[1], found[0])


class Steps(torch.nn.Module):
    """A cell in a loop."""

    def __init__(self, cell: torch.nn.Module) -> None:
        super().__init__()
        self.cell = cell

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        state = None
        for one in x:
            state = self.cell(one, state)
        return state[0] if isinstance(state, tuple) else torch.as_tensor(state)


@pytest.mark.parametrize("name", ["GRUCell", "LSTMCell", "RNNCell"])
def test_cells_are_in_the_graph_without_being_asked_for(name: str):
    model = Steps(getattr(stepnet.torch, name)(INPUTS, HIDDEN, dtype=torch.float64))
    found = []
    with torch._dynamo.config.patch(allow_rnn=False):
        for run in (model, torch.compile(model, backend="aot_eager", fullgraph=True)):
            model.zero_grad()
            y = run(numbers(3, BATCH, INPUTS))
            y.square().sum().backward()
            found.append({"y": y} | {name: one.grad for name, one in model.named_parameters()})
    assert_same(found[1], found[0])


class Noisy(torch.nn.Module):
    """A cell that does something else when it is trained, with a structure for its state."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.LSTMCell(INPUTS, HIDDEN)

    def forward(self, x: torch.Tensor, state: Any) -> Any:
        h, c = self.inner(x, (state["h"], state["c"]))
        return (h * 2 if self.training else h), {"h": h, "c": c}


def noisy() -> stepnet.torch.Recurrence:
    zeros = torch.zeros(1, HIDDEN)
    return stepnet.torch.Recurrence(Noisy(), (torch.zeros(1, INPUTS), {"h": zeros, "c": zeros})).double()


@pytest.mark.parametrize("training", [True, False])
def test_any_recurrence_is_in_the_graph(training: bool):
    module, found = noisy().train(training), []
    for run in (module, torch.compile(module, backend="aot_eager", fullgraph=True)):
        for form in (lambda x: x, lambda x: packed(x, None)):
            module.zero_grad()
            outputs, last = run(form(numbers(STEPS, BATCH, INPUTS)))
            y = outputs if isinstance(outputs, torch.Tensor) else outputs.data
            (y.square().sum() + last["c"].sum()).backward()
            found.append({"y": y, "h": last["h"]} | {n: p.grad for n, p in module.named_parameters()})
    assert_same(found[2], found[0])
    assert_same(found[3], found[1])


def by_params(x: torch.Tensor, h: torch.Tensor, params: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """A step that is a function, with its parameters in a dict."""
    h = torch.tanh(x @ params["W"] + h @ params["R"])
    return h, h


def test_a_recurrence_of_a_function_is_in_the_graph():
    params = {"W": numbers(INPUTS, HIDDEN), "R": numbers(HIDDEN, HIDDEN)}
    example = torch.zeros(1, INPUTS).double(), torch.zeros(1, HIDDEN).double(), params
    module, found = stepnet.torch.Recurrence(by_params, example), list[dict[str, Any]]()
    for run in (module, torch.compile(module, backend="aot_eager", fullgraph=True)):
        module.zero_grad()
        y, h = run(numbers(STEPS, BATCH, INPUTS))
        (y.square().sum() + h.sum()).backward()
        found.append({"y": y, "h": h} | {name: one.grad for name, one in module.named_parameters()})
    assert_same(found[1], found[0])


class Words(torch.nn.Module):
    """A cell that adds up the embeddings of words."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(5, 3)

    def forward(self, word: Any, h: Any) -> Any:
        return h + self.embedding(word)


def test_a_recurrence_of_integers_without_a_state_is_in_the_graph():
    module = stepnet.torch.Recurrence(
        Words(), (torch.zeros(1, dtype=torch.int64), torch.zeros(1, 3))
    ).double()
    words = torch.tensor([[1, 2], [3, 4], [0, 1]])
    _, last = torch.compile(module, backend="aot_eager", fullgraph=True)(words)
    torch.testing.assert_close(last, module.cell.embedding(words).sum(0))


def test_parameters_are_never_stale_in_a_graph():
    module = Case("GRU").modules()[1]
    run, x = torch.compile(module, backend="aot_eager", fullgraph=True), numbers(STEPS, BATCH, INPUTS)
    with torch.no_grad():
        before = [run(x)[0] for _ in range(3)][-1]
        module.weight_hh_l0.data.add_(0.5)
        assert not torch.equal(run(x)[0], before)
        assert_same({"": run(x)[0]}, {"": module(x)[0]})


# ---- recurrences that are trained in blocks of steps -------------------------------------------------------


class Matrix(torch.nn.Module):
    """A cell whose memory is a matrix, which eager training runs in blocks of steps if it is large."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.reads = torch.nn.Linear(INPUTS, 3 * size)
        self.decay = torch.nn.Linear(INPUTS, 1)

    def forward(self, x: torch.Tensor, S: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        q, k, v = self.reads(x).chunk(3, -1)
        S = S * torch.sigmoid(self.decay(x))[:, :, None] + k[:, :, None] * v[:, None, :]
        return (S * q[:, :, None]).mean(1), S


def matrix(size: int) -> Any:
    torch.manual_seed(size)
    return stepnet.torch.Recurrence(Matrix(size), (torch.zeros(1, INPUTS), torch.zeros(1, size, size)))


def whole_to_half(t: torch.Tensor) -> torch.Tensor:
    """Casts whole numbers: lengths, and the number of a compiled step, which half precision would round."""
    return t if t.is_floating_point() else t.bfloat16()


CHANGES = {
    "sizes": lambda t: t[:0] if t.dim() else t,
    "dtypes": torch.Tensor.bfloat16,
    "whole": whole_to_half,
}


@pytest.mark.parametrize("change", CHANGES)
def test_hooks_on_saved_tensors_give_back_their_shapes_and_dtypes(change: str):
    """A graph passes on what hooks give, and machine code reads its memory."""
    layer, steps = Case("GRU").modules()[1], numbers(STEPS, BATCH, INPUTS)
    for module, x in ((layer, FORMS["packed in order"](steps, layer)), (matrix(8), steps.float())):
        run, found = torch.compile(module, backend="aot_eager", fullgraph=True), list[Any]()
        for unpack in (torch.clone, CHANGES[change]):
            with torch.autograd.graph.saved_tensors_hooks(lambda t: t, unpack):
                loss = run(x)[1].sum()
            if unpack is torch.clone:
                found.append(torch.autograd.grad(loss, [*module.parameters()]))
                continue
            with pytest.raises(InputError, match="a hook on saved tensors gives a tensor of shape"):
                loss.backward()
        right = torch.autograd.grad(module(x)[1].sum(), [*module.parameters()])
        torch.testing.assert_close(found, [right])


class TwoMatrices(torch.nn.Module):
    """Two recurrences, of which only the second is trained in blocks."""

    batch_first = False

    def __init__(self) -> None:
        super().__init__()
        self.first, self.between, self.second = matrix(8), torch.nn.Linear(8, INPUTS), matrix(32)

    def forward(self, x: torch.Tensor, state: torch.Tensor | None) -> tuple[torch.Tensor, ...]:
        outputs, last = self.first(x)
        return *self.second(torch.tanh(self.between(outputs)), state), last


def exact(module: Any, form: Callable[[Any, Any], Any], states: list[torch.Tensor]) -> Any:
    """Results of the interpreter in float64."""
    exact = copy.deepcopy(module).double()
    for part in exact.modules():
        if isinstance(part, stepnet.torch.Recurrence):
            part.engine = "interpret"
    return answers(exact, form, [one.double() for one in states])


@pytest.mark.long(each=True)
@pytest.mark.parametrize("form", ["padded", "packed"])
@pytest.mark.parametrize("size", [8, 32, 64])
def test_gradients_of_matrices_are_in_the_graph(size: int, form: str):
    module = matrix(size)
    (blocks,) = module.enter().net.passes((0,)).run.blocks  # of training outside of the graph
    assert blocks.startswith("1 step:") is (size == 8)
    states = [numbers(BATCH, size, size, dtype=torch.float32)] if form == "packed" else []
    found = answers(Compiled(module, "aot_eager"), FORMS[form], states)
    assert_same(found, answers(module, FORMS[form], states))
    assert_same(found, exact(module, FORMS[form], states))


def test_gradients_of_two_matrices_are_in_one_graph():
    module, states = TwoMatrices(), [numbers(BATCH, 32, 32, dtype=torch.float32)]
    found = answers(Compiled(module, "aot_eager"), FORMS["padded"], states)
    assert_same(found, answers(module, FORMS["padded"], states))
    assert_same(found, exact(module, FORMS["padded"], states))


RECORDED: dict[str, Callable[[Any, Any], Any]] = {
    "export": lambda module, x: torch.export.export(module, (x,), strict=False).module(),
    "make_fx": lambda module, x: make_fx(lambda x: module(x))(x),
    "jit.trace": lambda module, x: torch.jit.trace(module, x),
}


@pytest.mark.parametrize("record", RECORDED)
def test_recorded_graphs_have_gradients_of_matrices(record: str):
    module, found = matrix(32), list[dict[str, Any]]()
    x = numbers(STEPS, BATCH, INPUTS, dtype=torch.float32).requires_grad_()
    for run in (module, RECORDED[record](module, x)):
        x.grad = None
        module.zero_grad()
        outputs, last = run(x)
        (outputs.square().sum() + last.sum()).backward()
        gradients = {name: one.grad for name, one in module.named_parameters()}
        found.append({"y": outputs, "S": last, "x": x.grad} | gradients)
    assert_same(found[1], found[0])


# ---- torch.export ------------------------------------------------------------------------------------------


def exported(module: Any, *, strict: bool = False) -> Any:
    """A program for sequences of any number and length."""
    dims: Any = ({0: torch.export.Dim("time"), 1: torch.export.Dim("batch")},)
    x = numbers(STEPS, BATCH, INPUTS)
    return torch.export.export(module, (x,), dynamic_shapes=dims, strict=strict)


@pytest.mark.parametrize("strict", [False, True])
def test_an_exported_layer_runs_with_gradients(strict: bool):
    ours = Case("LSTM").modules()[1]
    program = exported(ours, strict=strict)
    assert "stepnet.recurrence" in str(program.graph)
    found = []
    for run in (ours, program.module()):
        x = numbers(STEPS + 2, BATCH + 1, INPUTS).requires_grad_()
        outputs, (h, _) = run(x)
        (outputs.square().sum() + h.sum()).backward()
        found.append({"y": outputs, "h": h, "x": x.grad})
    assert_same(found[1], found[0])


ELSEWHERE = """
import sys, torch, stepnet.torch
with torch._dynamo.config.patch(allow_rnn=True):
    torch.compile(stepnet.torch.GRU(3, 4), backend="eager", fullgraph=True)(torch.ones(2, 1, 3))
for path in sys.argv[1:]:
    program = torch.export.load(path).module()
    print(program(torch.ones(4, 2, 3, dtype=torch.float64))[0].sum().item(), flush=True)
"""


def test_saved_programs_in_another_process(tmp_path: Any):
    """A layer is compiled by the first call of a process, and that of a program runs; that of another cell
    says that its module is not there.
    """
    paths, ours = [tmp_path / "layer.pt2", tmp_path / "cell.pt2"], Case("GRU", {"num_layers": 2}).modules()[1]
    for module, path in zip((ours, noisy()), paths, strict=True):
        torch.export.save(exported(module), path)
    command = [sys.executable, "-W", "ignore", "-c", ELSEWHERE, *map(str, paths)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    right = ours(torch.ones(4, 2, INPUTS, dtype=torch.float64))[0].sum().item()
    (found,) = done.stdout.split()
    assert abs(float(found) - right) < 1e-12
    assert done.returncode
    assert "runs a stepnet.torch.Recurrence that is not in this process: keep the module" in done.stderr


def test_a_program_outlives_its_layer_but_no_other_recurrence():
    x = numbers(STEPS, BATCH, INPUTS)
    module: Any = Case("GRU").modules()[1]
    program, right = exported(module).module(), module(x)[0]
    del module
    assert_same({"": program(x)[0]}, {"": right})
    module = noisy()
    program, right = exported(module).module(), module(x)[0]
    assert_same({"": program(x)[0]}, {"": right})
    copied = copy.deepcopy(module)  # held, or what collects garbage may take it before its program runs
    assert_same({"": program(x)[0]}, {"": exported(copied).module()(x)[0]})
    del module
    gc.collect()
    with pytest.raises(InputError, match=r"a stepnet\.torch\.Recurrence that is not in this process"):
        program(x)


def test_a_program_runs_in_the_mode_it_was_exported_in():
    module, x = noisy().eval(), numbers(STEPS, BATCH, INPUTS)
    right = module(x)[0]
    fresh = copy.deepcopy(module)
    program = exported(fresh).module()
    fresh.train()
    assert_same({"": program(x)[0]}, {"": right})
    assert fresh.training
    assert fresh.cell is not None
    assert fresh.cell.training


def test_a_graph_of_one_mode_is_run_in_the_other():
    """The mode that a graph was made in may be one that the module was not in before."""
    module = noisy()
    training = runnable_of(f"{module._name}:train")
    assert runnable_of(f"{module._name}:eval") is not training
    assert module.training
    assert runnable_of(f"{module._name}:train") is training


# ---- what is refused ---------------------------------------------------------------------------------------

TRANSFORMS: dict[str, Callable[[Any], Any]] = {
    "vmap": lambda f: lambda x: torch.vmap(f)(x[None]),
    "grad": lambda f: torch.func.grad(lambda x: f(x).sum()),
    "jvp": lambda f: lambda x: torch.func.jvp(f, (x,), (torch.ones_like(x),)),
}


@pytest.mark.parametrize("transform", TRANSFORMS)
def test_transforms_are_refused_in_graphs(transform: str):
    module = stepnet.torch.GRUCell(INPUTS, HIDDEN)
    run = torch.compile(TRANSFORMS[transform](module), backend="aot_eager", fullgraph=True)
    with pytest.raises(Unsupported, match=r"# no transform of torch\.func in a graph"):
        run(torch.ones(BATCH, INPUTS))


def test_vmap_of_an_exported_graph_is_refused():
    module = stepnet.torch.GRU(INPUTS, HIDDEN)
    x = torch.ones(STEPS, BATCH, INPUTS)
    program = torch.export.export(module, (x,)).module()
    with pytest.raises(InputError, match=r"a graph of torch.compile or torch.export cannot run under torch"):
        torch.vmap(lambda x: program(x)[0])(x[None])


def test_forward_mode_of_an_exported_graph_is_refused():
    program = exported(Case("GRU").modules()[1].requires_grad_(False)).module()
    x = numbers(STEPS, BATCH, INPUTS)
    with pytest.raises(InputError, match=r"export have no forward mode.*the module itself"):
        torch.func.jvp(lambda x: program(x)[0], (x,), (x,))


def test_second_derivatives_of_graphs_are_refused():
    module = Case("GRU").modules()[1]
    for run in (torch.compile(module, backend="eager", fullgraph=True), exported(module).module()):
        x = numbers(STEPS, BATCH, INPUTS).requires_grad_()
        (gradient,) = torch.autograd.grad(run(x)[0].square().sum(), x, create_graph=True)
        with pytest.raises(InputError, match="has only first derivatives: run the module itself"):
            gradient.sum().backward()


def test_gradients_of_a_graph_without_them_are_refused():
    with torch.no_grad():
        program = exported(Case("GRU").modules()[1]).module()
    with pytest.raises(InputError, match="gradients are requested from a graph that was made without them"):
        program(numbers(STEPS, BATCH, INPUTS).requires_grad_())
