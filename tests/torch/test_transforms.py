"""The transforms of torch.func and forward mode on our modules, against torch.nn's with the same numbers.

Where torch.nn's layers have no rule of their own, the right side is a loop over them.
"""

import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from constants import Constants
from tolerance import assert_close
from torch.func import (
    functional_call,
    functionalize,
    grad,
    hessian,
    jacfwd,
    jacrev,
    jvp,
    stack_module_state,
    vjp,
    vmap,
)

import stepnet as sn
import stepnet.torch
from stepnet.errors import InputError
from stepnet.torch import mapped
from tests.torch.layer_cases import BATCH, HIDDEN, INPUTS, STEPS, Case, numbers
from tests.torch.torch_cells import NormalisedGRU

pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")  # forward mode uses it

CASES = {
    "GRU": Case("GRU"),
    "LSTM": Case("LSTM", {"num_layers": 2, "bidirectional": True, "batch_first": True}),
    "RNN": Case("RNN", {"nonlinearity": "relu"}),
}
ENTRIES = 2
Parameters = dict[str, torch.Tensor]
Run = Callable[[Parameters, torch.Tensor], torch.Tensor]


def function_of(module: Any) -> Run:
    """A module as a function of its parameters and sequences, with all its results in one vector."""

    def run(params: Parameters, x: torch.Tensor) -> torch.Tensor:
        outputs, last = functional_call(module, params, (x,))
        return torch.cat(
            [one.flatten() for one in (outputs, *(last if isinstance(last, tuple) else (last,)))]
        )

    return run


def loss_of(run: Run) -> Run:
    return lambda params, x: run(params, x).square().sum()


def like(params: Parameters, entries: int | None = None) -> Parameters:
    """Other numbers of the shapes of parameters, or several of each."""
    lead = () if entries is None else (entries,)
    return {name: 0.5 * numbers(*lead, *tensor.shape) for name, tensor in params.items()}


def entry(params: Parameters, place: int) -> Parameters:
    return {name: tensor[place] for name, tensor in params.items()}


def in_turn(run: Callable[..., Any], count: int = ENTRIES) -> Any:
    """The results of a function of a number, side by side, as vmap has them."""
    made = [run(place) for place in range(count)]
    if isinstance(made[0], dict):
        return {name: torch.stack([one[name] for one in made]) for name in made[0]}
    return torch.stack(made)


def shares(x: torch.Tensor) -> torch.Tensor:
    """Several batches of the shape of one."""
    return numbers(ENTRIES, *x.shape)


DERIVATIVES: dict[str, Callable[[Run, Parameters, torch.Tensor], Any]] = {
    "jvp": lambda f, p, x: jvp(f, (p, x), (like(p), x.cos())),
    "jvp of the inputs alone": lambda f, p, x: jvp(lambda x: f(p, x), (x,), (x.cos(),)),
    "jvp of jvp": lambda f, p, x: jvp(
        lambda x: jvp(lambda p: f(p, x), (p,), (like(p),))[1], (x,), (x.cos(),)
    ),
    "jvp of grad": lambda f, p, x: jvp(lambda x: grad(loss_of(f))(p, x), (x,), (x.cos(),))[1],
    "grad of jvp": lambda f, p, x: grad(lambda p: jvp(lambda x: f(p, x), (x,), (x.cos(),))[1].sum())(p),
    "vjp": lambda f, p, x: vjp(f, p, x)[1](f(p, x).detach())[1],
    "jacfwd": lambda f, p, x: jacfwd(f, 1)(p, x[:2]),
    "jacrev": lambda f, p, x: jacrev(f, 1)(p, x[:2]),
    "hessian": lambda f, p, x: hessian(loss_of(f), 1)(p, x[:1]),
    "functionalize": lambda f, p, x: functionalize(f)(p, x),
    "grad of functionalize": lambda f, p, x: grad(loss_of(functionalize(f)))(p, x),
}


def assert_same(found: Any, right: Any) -> None:
    if isinstance(right, torch.Tensor):
        assert_close(found.detach().numpy(), right.detach().numpy(), 8 * STEPS, 8 * HIDDEN)
        return
    assert len(found) == len(right) > 0
    for key in right if isinstance(right, dict) else range(len(right)):
        assert_same(found[key], right[key])


def given(case: Case) -> tuple[Run, Run, Parameters, torch.Tensor]:
    """The functions of torch.nn's module and of ours, their parameters, and sequences."""
    theirs, ours = case.modules()
    params = {name: tensor.detach() for name, tensor in theirs.named_parameters()}
    return function_of(theirs), function_of(ours), params, numbers(STEPS, BATCH, INPUTS)


@pytest.mark.long(each=True)
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("derivative", DERIVATIVES)
def test_derivatives_are_those_of_torch_nn(derivative: str, name: str) -> None:
    theirs, ours, params, x = given(CASES[name])
    derive = DERIVATIVES[derivative]
    assert_same(derive(ours, params, x), derive(theirs, params, x))


VMAPS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "batches": (
        lambda f, p, ps, xs: vmap(f, (None, 0))(p, xs),
        lambda f, p, ps, xs: in_turn(lambda n: f(p, xs[n])),
    ),
    "batches along another axis": (
        lambda f, p, ps, xs: vmap(f, (None, 2))(p, xs.movedim(0, 2)),
        lambda f, p, ps, xs: in_turn(lambda n: f(p, xs[n])),
    ),
    "an ensemble": (
        lambda f, p, ps, xs: vmap(f, (0, None))(ps, xs[0]),
        lambda f, p, ps, xs: in_turn(lambda n: f(entry(ps, n), xs[0])),
    ),
    "gradients of each batch": (
        lambda f, p, ps, xs: vmap(grad(loss_of(f)), (None, 0))(p, xs),
        lambda f, p, ps, xs: in_turn(lambda n: grad(loss_of(f))(p, xs[n])),
    ),
    "gradients of each sequence": (
        lambda f, p, ps, xs: vmap(grad(loss_of(f)), (None, 0))(p, xs[:, :1, :1]),
        lambda f, p, ps, xs: in_turn(lambda n: grad(loss_of(f))(p, xs[n, :1, :1])),
    ),
    "second derivatives of each sequence": (
        lambda f, p, ps, xs: vmap(lambda x: jvp(lambda x: grad(loss_of(f))(p, x), (x,), (x.cos(),))[1])(
            xs[:, :1, :1]
        ),
        lambda f, p, ps, xs: in_turn(
            lambda n: jvp(lambda x: grad(loss_of(f))(p, x), (xs[n, :1, :1],), (xs[n, :1, :1].cos(),))[1]
        ),
    ),
    "a gradient of the gradients of each sequence": (
        lambda f, p, ps, xs: grad(
            lambda x: sum(g.square().sum() for g in vmap(grad(loss_of(f)), (None, 0))(p, x).values())
        )(xs[:, :1, :1]),
        lambda f, p, ps, xs: in_turn(
            lambda n: grad(lambda x: sum(g.square().sum() for g in grad(loss_of(f))(p, x).values()))(
                xs[n, :1, :1]
            )
        ),
    ),
    "gradients of an ensemble": (
        lambda f, p, ps, xs: vmap(grad(loss_of(f)), (0, 0))(ps, xs),
        lambda f, p, ps, xs: in_turn(lambda n: grad(loss_of(f))(entry(ps, n), xs[n])),
    ),
    "gradients of an ensemble of its shared inputs": (
        lambda f, p, ps, xs: vmap(grad(loss_of(f)), (0, None))(ps, xs[0]),
        lambda f, p, ps, xs: in_turn(lambda n: grad(loss_of(f))(entry(ps, n), xs[0])),
    ),
    "gradients of an ensemble along other axes": (
        lambda f, p, ps, xs: vmap(grad(loss_of(f)), (dict.fromkeys(ps, -1), 1), -1)(
            {name: tensor.movedim(0, -1) for name, tensor in ps.items()}, xs.movedim(0, 1)
        ),
        lambda f, p, ps, xs: {
            name: tensor.movedim(0, -1)
            for name, tensor in in_turn(lambda n: grad(loss_of(f))(entry(ps, n), xs[n])).items()
        },
    ),
    "gradients of an ensemble of which a parameter is shared": (
        lambda f, p, ps, xs: vmap(grad(loss_of(f)), ({**dict.fromkeys(ps, 0), "weight_hh_l0": None}, 0))(
            {**ps, "weight_hh_l0": p["weight_hh_l0"]}, xs
        ),
        lambda f, p, ps, xs: in_turn(
            lambda n: grad(loss_of(f))({**entry(ps, n), "weight_hh_l0": p["weight_hh_l0"]}, xs[n])
        ),
    ),
    "gradients of an ensemble of each sequence": (
        lambda f, p, ps, xs: vmap(vmap(grad(loss_of(f)), (None, 0)), (0, None))(ps, xs[:, :, :1]),
        lambda f, p, ps, xs: in_turn(
            lambda n: in_turn(lambda m: grad(loss_of(f))(entry(ps, n), xs[m, :, :1]))
        ),
    ),
    "gradients of each sequence of an ensemble": (
        lambda f, p, ps, xs: vmap(vmap(grad(loss_of(f)), (0, None)), (None, 0))(ps, xs[:, :, :1]),
        lambda f, p, ps, xs: in_turn(
            lambda m: in_turn(lambda n: grad(loss_of(f))(entry(ps, n), xs[m, :, :1]))
        ),
    ),
    "the gradient of an ensemble": (
        lambda f, p, ps, xs: grad(lambda ps: vmap(f, (0, None))(ps, xs[0]).square().sum())(ps),
        lambda f, p, ps, xs: in_turn(lambda n: grad(loss_of(f))(entry(ps, n), xs[0])),
    ),
    "the gradient of an ensemble of its shared inputs": (
        lambda f, p, ps, xs: grad(lambda x: vmap(f, (0, None))(ps, x).square().sum())(xs[0]),
        lambda f, p, ps, xs: in_turn(lambda n: grad(lambda x: loss_of(f)(entry(ps, n), x))(xs[0])).sum(0),
    ),
    "the gradient of gradients of an ensemble": (
        lambda f, p, ps, xs: grad(
            lambda x: sum(g.square().sum() for g in vmap(grad(loss_of(f)), (0, None))(ps, x).values())
        )(xs[0]),
        lambda f, p, ps, xs: in_turn(
            lambda n: grad(
                lambda x: sum(g.square().sum() for g in grad(loss_of(f))(entry(ps, n), x).values())
            )(xs[0])
        ).sum(0),
    ),
    "tangents of an ensemble": (
        lambda f, p, ps, xs: vmap(lambda p, x: jvp(lambda x: f(p, x), (x,), (x.cos(),))[1], (0, None))(
            ps, xs[0]
        ),
        lambda f, p, ps, xs: in_turn(
            lambda n: jvp(lambda x: f(entry(ps, n), x), (xs[0],), (xs[0].cos(),))[1]
        ),
    ),
    "the gradient of several": (
        lambda f, p, ps, xs: grad(lambda p: vmap(f, (None, 0))(p, xs).square().sum())(p),
        lambda f, p, ps, xs: grad(lambda p: sum(f(p, x).square().sum() for x in xs))(p),
    ),
    "tangents": (
        lambda f, p, ps, xs: vmap(lambda x: jvp(lambda p: f(p, x), (p,), (like(p),))[1])(xs),
        lambda f, p, ps, xs: in_turn(lambda n: jvp(lambda p: f(p, xs[n]), (p,), (like(p),))[1]),
    ),
    "of vmap": (
        lambda f, p, ps, xs: vmap(vmap(f, (None, 0)), (0, None))(ps, xs),
        lambda f, p, ps, xs: in_turn(lambda n: in_turn(lambda m: f(entry(ps, n), xs[m]))),
    ),
}


@pytest.mark.long(each=True)
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("way", VMAPS)
def test_vmap_gives_what_a_loop_gives(way: str, name: str) -> None:
    theirs, ours, params, x = given(CASES[name])
    ours_mapped, in_a_loop = VMAPS[way]
    found = ours_mapped(ours, params, like(params, ENTRIES), shares(x))
    assert_same(found, in_a_loop(theirs, params, like(params, ENTRIES), shares(x)))


MEMBERS = 3


def ensemble(kind: str) -> tuple[Any, list[Any], Parameters]:
    """A module of ours, torch.nn's of the members of an ensemble, and their parameters in one tensor each."""
    if kind == "Recurrence":
        members = [torch.nn.GRU(INPUTS, HIDDEN, dtype=torch.float64) for _ in range(MEMBERS)]
        example = torch.zeros(1, INPUTS), torch.zeros(1, HIDDEN)
        ours: Any = stepnet.torch.Recurrence(torch.nn.GRUCell(INPUTS, HIDDEN), example).double()
        names = {f"cell.{n.removesuffix('_l0')}": n for n, _ in members[0].named_parameters()}
        assert {*names} == {name for name, _ in ours.named_parameters()}
    else:
        options = {"dtype": torch.float64}
        members = [getattr(torch.nn, kind)(INPUTS, HIDDEN, **options) for _ in range(MEMBERS)]
        ours = getattr(stepnet.torch, kind)(INPUTS, HIDDEN, **options)
        names = {name: name for name, _ in ours.named_parameters()}
    stacked = stack_module_state(members)[0]
    return ours, members, {ours: stacked[theirs] for ours, theirs in names.items()}


@pytest.mark.parametrize("kind", ["GRU", "LSTM", "Recurrence"])
def test_an_ensemble_trains_as_modules_of_torch_nn_do(kind: str) -> None:
    ours, members, stacked = ensemble(kind)
    x = numbers(STEPS, BATCH, INPUTS)

    def loss(params: Parameters, x: torch.Tensor) -> torch.Tensor:
        return functional_call(ours, params, (x,))[0].square().sum()

    for member in members:
        member(x)[0].square().sum().backward()
    right = [
        torch.stack(each) for each in zip(*([p.grad for p in m.parameters()] for m in members), strict=True)
    ]
    assert_same([*vmap(grad(loss), (0, None))(stacked, x).values()], right)
    assert_same([*torch.autograd.grad(vmap(loss, (0, None))(stacked, x).sum(), [*stacked.values()])], right)


def runs_of(call: Callable[[], Any]) -> Counter[str]:
    """Counts what runs of nets in a call: forward and backward passes, and whole nets."""
    counts, names = Counter[str](), ("run_forward", "run_backward", "run_net_on")

    def count(frame: Any, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_name in names:
            counts[frame.f_code.co_name] += 1

    sys.setprofile(count)
    try:
        call()
    finally:
        sys.setprofile(None)
    return counts


def test_each_member_runs_one_forward_and_one_backward_pass() -> None:
    ours, _, stacked = ensemble("GRU")
    loss, x = loss_of(function_of(ours)), numbers(MEMBERS, STEPS, BATCH, INPUTS)
    passes = {"run_forward": MEMBERS, "run_backward": MEMBERS}
    assert runs_of(lambda: vmap(grad(loss))(stacked, x)) == passes
    params = {name: tensor.detach() for name, tensor in ours.named_parameters()}
    of_sequences = runs_of(lambda: vmap(grad(loss), (None, 0))(params, x[:, :, :1]))
    assert of_sequences == {"run_forward": 1, "run_backward": 1}
    ones = torch.ones(MEMBERS, dtype=torch.float64)
    of_cotangents = runs_of(lambda: vmap(vjp(lambda p: loss(p, x[0]), params)[1])(ones))
    assert of_cotangents == {"run_forward": 1, "run_backward": MEMBERS}


def test_saved_values_that_were_changed_in_place_are_not_read() -> None:
    saved, tensor = mapped.Saved((0,), 0), torch.zeros(2)
    saved.add((1,), [tensor])
    assert saved.of((0,)) is None
    assert saved.of((1,)) is not None
    tensor.add_(1)
    assert saved.of((1,)) is None


@pytest.mark.parametrize("randomness", ["same", "different", "error"])
def test_dropout_in_an_ensemble_is_drawn_as_vmap_is_told(randomness: str) -> None:
    gru = stepnet.torch.GRU(INPUTS, HIDDEN, 2, dropout=0.5, dtype=torch.float64)
    stacked = {name: tensor.detach().expand(2, *tensor.shape) for name, tensor in gru.named_parameters()}
    loss, x = loss_of(function_of(gru)), numbers(STEPS, BATCH, INPUTS)

    def drawn(function: Run) -> Run:
        def run(*given: Any) -> Any:
            torch.manual_seed(3)
            return vmap(function, (0, None), randomness=randomness)(*given)

        return run

    if randomness == "error":
        with pytest.raises(RuntimeError, match="random operation while in randomness error mode"):
            drawn(grad(loss))(stacked, x)
        return
    each, slopes = drawn(loss)(stacked, x), drawn(grad(loss))(stacked, x)
    assert bool(each[0] == each[1]) is (randomness == "same")
    way, step = like(stacked), 1e-6
    ends = [drawn(loss)({n: w + sign * step * way[n] for n, w in stacked.items()}, x) for sign in (1, -1)]
    along = torch.stack([(slopes[name] * way[name]).flatten(1).sum(1) for name in stacked]).sum(0)
    torch.testing.assert_close(along, (ends[0] - ends[1]) / (2 * step), rtol=1e-6, atol=1e-8)


def test_an_ensemble_without_members_has_results_without_entries() -> None:
    _, run, params, x = given(CASES["GRU"])
    none = {name: tensor.expand(0, *tensor.shape) for name, tensor in params.items()}
    loss = loss_of(run)
    assert vmap(loss, (0, None))(none, x).shape == (0,)
    assert {n: [*w.shape] for n, w in vmap(grad(loss), (0, None))(none, x).items()} == {
        name: [0, *tensor.shape] for name, tensor in params.items()
    }
    assert vmap(loss, (None, 0))(params, x.expand(0, *x.shape)).shape == (0,)


def test_vmap_of_initial_states() -> None:
    theirs, ours = Case("GRU").modules()
    x, states = numbers(STEPS, BATCH, INPUTS), numbers(ENTRIES, 1, BATCH, HIDDEN)
    found = vmap(lambda h: ours(x, h)[0])(states)
    assert_same(found, in_turn(lambda n: theirs(x, states[n])[0]))


def test_a_sequence_has_the_same_bits_alone_and_under_vmap() -> None:
    _, ours = Case("GRU", dtype=torch.float32).modules()
    xs = numbers(ENTRIES, STEPS, BATCH, INPUTS, dtype=torch.float32)
    assert torch.equal(vmap(lambda x: ours(x)[0])(xs), in_turn(lambda n: ours(xs[n])[0]))


def test_the_gradients_of_each_sequence_are_one_call_with_the_bits_of_each_alone(
    constants: Constants,
) -> None:
    constants("stepnet.compiler.targets.cpu.running.prepared_chain", SLICE=1e-9)  # so that each call reports
    _, ours = Case("GRU", dtype=torch.float32).modules()
    params = {name: tensor.detach() for name, tensor in ours.named_parameters()}
    xs = numbers(7, 400, 1, INPUTS, dtype=torch.float32)
    slope, reports = grad(loss_of(function_of(ours))), list[sn.Progress]()
    right = in_turn(lambda n: slope(params, xs[n]), 7)
    with sn.progress(reports.append):
        found = vmap(slope, (None, 0))(params, xs)
    assert {report.all_sequences for report in reports} == {7}
    for name, gradient in right.items():
        assert torch.equal(found[name], gradient)


# ---- without torch.func ------------------------------------------------------------------------------------


def test_forward_mode_of_modules() -> None:
    forward = torch.autograd.forward_ad
    theirs, ours = Case("LSTM").modules()
    x = numbers(STEPS, BATCH, INPUTS)
    made: list[Any] = []
    for module in (theirs, ours):
        with forward.dual_level():
            outputs, (h, c) = module(forward.make_dual(x, x.cos()))
            made.append([forward.unpack_dual(one).tangent for one in (outputs, h, c)])
    assert_same(made[1], made[0])


@pytest.mark.parametrize("create_graph", [False, True])
def test_forward_over_reverse(create_graph: bool) -> None:
    """The product of the Hessian with a direction, by the gradient of dual numbers."""
    forward = torch.autograd.forward_ad
    theirs, ours = Case("GRU").modules()
    made: list[Any] = []
    for module in (theirs, ours):
        x = numbers(STEPS, BATCH, INPUTS).requires_grad_()
        with forward.dual_level():
            outputs, _ = module(forward.make_dual(x, x.detach().cos()))
            (slope,) = torch.autograd.grad(outputs.square().sum(), [x], create_graph=create_graph)
            made.append(forward.unpack_dual(slope).tangent)
    assert_same(made[1], made[0])


SEVERAL: dict[str, Callable[..., Any]] = {
    "is_grads_batched": lambda outputs, given, many: torch.autograd.grad(
        outputs, given, many, is_grads_batched=True
    ),
    "of a graph": lambda outputs, given, many: torch.autograd.grad(
        outputs, given, many, is_grads_batched=True, create_graph=True
    ),
    "vmap": lambda outputs, given, many: vmap(
        lambda one: torch.autograd.grad(outputs, given, one, retain_graph=True)
    )(many),
}


@pytest.mark.parametrize("way", SEVERAL)
def test_several_cotangents_at_once(way: str) -> None:
    theirs, ours = Case("GRU").modules()
    x = numbers(STEPS, BATCH, INPUTS)
    many, made = numbers(ENTRIES, STEPS, BATCH, HIDDEN), list[Any]()
    for module in (theirs, ours):
        given = [x.clone().requires_grad_(), *module.parameters()]
        outputs, _ = module(given[0])
        if module is ours:
            slopes = SEVERAL[way](outputs, given, many)
        else:
            each = [torch.autograd.grad(outputs, given, one, retain_graph=True) for one in many]
            slopes = [torch.stack(kind) for kind in zip(*each, strict=True)]
        made.append(slopes)
    assert_same(made[1], made[0])


def test_functionalize_around_another_transform_is_refused() -> None:
    _, ours, params, x = given(CASES["GRU"])
    with pytest.raises(InputError, match=r"not under another transform inside it: exchange the two, as in"):
        functionalize(grad(loss_of(ours)))(params, x)


# ---- other modules -----------------------------------------------------------------------------------------


def decay(x: Any, h: Any, p: Any) -> Any:
    h = h * p["a"] + x
    return h, h


def test_scans_and_cells_have_transforms() -> None:
    rnn = sn.RNN(decay, {"a": numbers(INPUTS).numpy()}, memory=INPUTS)
    scan, x = stepnet.torch.Scan(rnn), numbers(BATCH, STEPS, INPUTS)
    lengths = torch.tensor([6, 2, 0, 3, 6])

    def run(x: torch.Tensor) -> torch.Tensor:
        return scan(x, lengths=lengths)[0]

    (right,) = torch.autograd.functional.jvp(run, (x,), (x.cos(),))[1:]
    assert_same(jvp(run, (x,), (x.cos(),))[1], right)
    xs = shares(x)
    assert_same(vmap(run)(xs), in_turn(lambda n: run(xs[n])))
    theirs, ours = (package.GRUCell(INPUTS, HIDDEN).double() for package in (torch.nn, stepnet.torch))
    ours.load_state_dict(theirs.state_dict())
    assert_same(jvp(ours, (x[0],), (x[1],)), jvp(theirs, (x[0],), (x[1],)))
    assert_same(vmap(ours)(x), in_turn(lambda n: theirs(x[n]), BATCH))


def test_a_cell_written_with_pytorch_has_transforms() -> None:
    cell, x = NormalisedGRU(INPUTS, HIDDEN), numbers(STEPS, BATCH, INPUTS)
    module = stepnet.torch.Recurrence(cell, (torch.zeros(1, INPUTS), torch.zeros(1, HIDDEN))).double()

    def loop(x: torch.Tensor) -> torch.Tensor:
        outputs, h = list[torch.Tensor](), x.new_zeros(BATCH, HIDDEN)
        for one in x:
            h = cell(one, h)
            outputs.append(h)
        return torch.stack(outputs)

    def run(x: torch.Tensor) -> torch.Tensor:
        return module(x)[0]

    def slope(run: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[torch.Tensor], torch.Tensor]:
        return grad(lambda x: run(x).square().sum())

    assert_same(jvp(run, (x,), (x.cos(),)), jvp(loop, (x,), (x.cos(),)))
    assert_same(vmap(run)(shares(x)), in_turn(lambda n: loop(shares(x)[n])))
    assert_same(vmap(slope(run))(shares(x)), in_turn(lambda n: slope(loop)(shares(x)[n])))


@pytest.mark.parametrize("kind", ["GRU", "Recurrence"])
def test_packed_sequences_have_transforms(kind: str) -> None:
    theirs, gru = CASES["GRU"].modules()
    cell, example = torch.nn.GRUCell(INPUTS, HIDDEN), (torch.zeros(1, INPUTS), torch.zeros(1, HIDDEN))
    ours = gru if kind == "GRU" else stepnet.torch.Recurrence(cell, example).double()
    cell.load_state_dict({name.removesuffix("_l0"): each for name, each in theirs.state_dict().items()})
    packed = torch.nn.utils.rnn.pack_sequence([numbers(2, INPUTS), numbers(5, INPUTS)], enforce_sorted=False)

    def of(module: Any) -> Callable[[torch.Tensor], torch.Tensor]:
        return lambda data: module(packed._replace(data=data))[0].data

    def loss(params: Parameters) -> torch.Tensor:
        return functional_call(ours, params, (packed,))[0].data.square().sum()

    run, x = of(ours), packed.data
    given = x.clone().requires_grad_()
    (right,) = torch.autograd.grad(of(theirs)(given).square().sum(), given)
    assert_same(grad(lambda x: run(x).square().sum())(x), right)
    assert_same(vjp(run, x)[1](2 * run(x))[0], right)
    assert_same(jvp(run, (x,), (x.cos(),))[1], torch.autograd.functional.jvp(of(theirs), (x,), (x.cos(),))[1])
    outside = torch.autograd.grad(of(ours)(x).square().sum(), [*ours.parameters()])
    params = {name: tensor.detach() for name, tensor in ours.named_parameters()}
    assert_same([*grad(loss)(params).values()], [*outside])


def test_lengths_that_vmap_maps_are_refused() -> None:
    scan = stepnet.torch.Scan(sn.RNN(decay, {"a": numbers(INPUTS).numpy()}, memory=INPUTS))
    params = {name: tensor.detach() for name, tensor in scan.named_parameters()}

    def loss(params: Parameters, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        return functional_call(scan, params, (x[None],), {"lengths": lengths[None]})[0].square().sum()

    x, lengths = numbers(2, STEPS, INPUTS), torch.tensor([STEPS, 2])
    with pytest.raises(InputError, match=r"^lengths cannot be mapped by torch.vmap, .* by 0$"):
        vmap(grad(loss), (None, 0, 0))(params, x, lengths)

    def masked(params: Parameters, x: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
        return (functional_call(scan, params, (x[None],))[0] * counts[:, None]).square().sum()

    counts = torch.arange(STEPS)[None] < lengths[:, None]
    right = in_turn(lambda n: grad(loss)(params, x[n], lengths[n]))
    assert_same(vmap(grad(masked), (None, 0, 0))(params, x, counts), right)


def test_jagged_nested_tensors_are_refused_under_transforms() -> None:
    gru = Case("GRU", {"batch_first": True}).modules()[1]
    sequences = torch.nested.nested_tensor([numbers(2, INPUTS), numbers(3, INPUTS)], layout=torch.jagged)
    params = {name: tensor.detach() for name, tensor in gru.named_parameters()}
    with pytest.raises(InputError, match=r"under the transforms of torch.func, .* give a PackedSequence, or"):
        grad(lambda p: functional_call(gru, p, (sequences,))[0].values().sum())(params)


@pytest.mark.long
def test_pytorchs_own_checks_of_derivatives(pytestconfig: pytest.Config) -> None:
    _, ours = Case("GRU").modules()
    x, h = numbers(2, 1, INPUTS).requires_grad_(), numbers(1, 1, HIDDEN).requires_grad_()
    checks: dict[str, Any] = {"check_batched_grad": True, "check_forward_ad": True}
    assert torch.autograd.gradcheck(ours, (x, h), check_batched_forward_grad=True, **checks)
    if pytestconfig.option.long:
        assert torch.autograd.gradgradcheck(ours, (x, h), check_fwd_over_rev=True, check_batched_grad=True)
