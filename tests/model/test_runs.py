"""Runs whose parameters change: what is prepared gives the bits of what is not."""

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import combinations
from typing import Any

import numpy as np
import pytest
import torch
from same_bits import assert_same_bits
from turns import in_turns
from zoo import uniform

import stepnet as sn
from stepnet.cells import CELLS
from stepnet.compiler.grad import halves, vjp
from stepnet.compiler.net import Net
from stepnet.compiler.targets import Call, checked_engine
from stepnet.compiler.values import named_leaves
from stepnet.compiler.values.lending import TensorList
from stepnet.errors import InputError
from stepnet.model.executables import MOST_FORMS, Runs, form_of
from stepnet.model.gradients.addressed import TensorNet
from stepnet.model.layers import LayerPrograms
from stepnet.model.program import NetProgram
from stepnet.ragged import Positions, offsets_of
from stepnet.torch.lending import LENDER

Array = np.ndarray
AUTO = checked_engine("auto")
RANDOM = np.random.default_rng(7)


numbers = partial(uniform, seed=RANDOM)


def forward(name: str = "lstm") -> Net:
    """The forward half of a cell's gradient: its results, and what it saves."""
    net = sn.cells.rnn(name, CELLS[name].parameters(3, 5)).net
    return halves(vjp(net), len(net.inputs), len(net.results)).forward


def backward(name: str = "lstm") -> Net:
    """The backward half: sums over sequences and over all rows."""
    net = sn.cells.rnn(name, CELLS[name].parameters(3, 5)).net
    return halves(vjp(net), len(net.inputs), len(net.results)).backward


def stacked(name: str = "lstm", half: str = "backward") -> Net:
    """A half of the gradient of two layers, the first of both directions."""

    def layer(inputs: int, reverse: bool = False) -> sn.RNN:
        return sn.cells.rnn(name, CELLS[name].parameters(inputs, 5), reverse=reverse)

    layers = sn.Stack([sn.Bidirectional(layer(3), layer(3, reverse=True)), layer(10)])
    read = LayerPrograms(layers).read(np.zeros((1, 1, 3), "float32"), None, None, None, False)
    net = read.program.net
    return getattr(halves(vjp(net), len(net.inputs), len(net.results)), half)


def stacked_forward(name: str = "lstm") -> Net:
    """The forward half of layers' gradient."""
    return stacked(name, "forward")


def call_of(program: NetProgram, lengths: tuple[int, ...]) -> Call:
    """A call of sequences with random numbers for all inputs."""
    net, ends, total = program.net, program.ends, sum(lengths)

    def array(place: int, *lead: int) -> Array:
        return numbers(*lead, *net.type_of(net.inputs[place]).shape)

    return Call(
        Positions.end_to_end(offsets_of(lengths)),
        [array(place, total) for place in ends.sequences],
        [array(place, len(lengths)) for place in ends.memories],
        [array(place, len(lengths)) for place in ends.statics],
    )


def parameters(program: NetProgram) -> list[Array]:
    return [
        numbers(*program.net.type_of(program.net.inputs[place]).shape) for place in program.ends.parameters
    ]


def answers(runs: Runs, params: list[Array], call: Call) -> Any:
    return runs(params, call).arrays


MAKES = [forward, backward, stacked_forward, stacked]
MADE = [(make, name) for make in MAKES for name in ("gru", "lstm", "gru_reset_before")]


@pytest.mark.long(every=6)
@pytest.mark.parametrize(("made", "lengths"), in_turns(MADE, [(4, 4), (3, 1, 5), (1,)]))
def test_prepared_runs_give_the_bits_of_others(made: tuple[Any, str], lengths: tuple[int, ...]) -> None:
    make, name = made
    program = NetProgram(make(name))
    runs = program.runs(AUTO)
    for turn in range(4):
        params, call = parameters(program), call_of(program, lengths)
        expected = runs.once(params, call).arrays
        assert_same_bits(answers(runs, params, call), expected)
        assert any(runs.idle.values()) == (turn > 0)


def test_parameters_are_read_at_every_run_however_they_were_changed() -> None:
    program = NetProgram(forward())
    runs, params, call = program.runs(AUTO), parameters(program), call_of(program, (3, 2))
    for _ in range(2):
        answers(runs, params, call)
    before = answers(runs, params, call)
    params[0] *= 2
    changed = answers(runs, params, call)
    assert_same_bits(changed, runs.once(params, call).arrays)
    assert before[0].tobytes() != changed[0].tobytes()
    replaced = [params[0][::-1], *params[1:]]  # not C-contiguous: it is bound anew
    assert_same_bits(answers(runs, replaced, call), runs.once(replaced, call).arrays)
    assert_same_bits(answers(runs, params, call), changed)


def test_parameters_at_addresses_do_not_stay_for_calls_on_arrays() -> None:
    """Calls on memory set the addresses of their parameters in the words that calls on arrays set, too."""
    program = NetProgram(forward())
    runs, params, call = program.runs(AUTO), parameters(program), call_of(program, (3, 2))
    expected = runs.once(params, call).arrays
    for _ in range(3):
        assert_same_bits(answers(runs, params, call), expected)
    ends, others = program.ends, parameters(program)
    kinds = zip((*ends.sequences, *ends.memories, *ends.statics), call.given, strict=True)
    inputs: dict[int, Any] = dict(kinds) | dict(zip(ends.parameters, others, strict=True))
    on_tensors = TensorNet(program, AUTO, call.positions, [False] * len(program.net.inputs), None)
    arrays = [*(inputs[place] for place in sorted(inputs)), *(np.empty(*spec) for spec in on_tensors.made)]
    specs = [(array.shape, array.dtype.name) for array in arrays]
    places = [(tensor, 0) for tensor in range(len(arrays))]
    assert on_tensors.on(TensorList(LENDER, specs, places, {}))([*map(torch.from_numpy, arrays)])
    assert_same_bits(answers(runs, params, call), expected)


def test_sums_of_layers_are_made_in_the_parts_of_their_recurrences() -> None:
    kinds = [part.kind for part in NetProgram(stacked()).schedule.parts]
    assert sorted(kinds) == ["plain", "plain", "recurrence", "recurrence", "recurrence"]


def test_results_of_layers_have_memory_of_their_own() -> None:
    def ignores(x: Any, h: Any, params: Any) -> tuple[Any, Any]:
        return (h + x * params["used"],) * 2

    def layer() -> sn.RNN:
        return sn.RNN(ignores, {"used": np.ones(3), "unused": np.ones(3)}, memory=3)

    run, x = sn.vjp(sn.Stack([layer(), layer()])), np.ones((1, 2, 3))
    for _ in range(3):
        results, backward = run(x)
        gradients = backward(*results)
        for params in gradients.params:
            assert params["unused"].tolist() == [0, 0, 0]
            params["unused"] += 1  # it is the caller's
        arrays = [array for _, array in named_leaves((results, gradients)) if array is not None]
        assert not any(np.shares_memory(a, b) for a, b in combinations(arrays, 2))


def test_parameters_that_were_one_array_and_are_two_now() -> None:
    net = sn.cells.rnn("gru", CELLS["gru"].parameters(5, 5)).net
    program = NetProgram(halves(vjp(net), len(net.inputs), len(net.results)).forward)
    runs, call = program.runs(AUTO), call_of(program, (3, 2))
    W, R, b, d = parameters(program)
    for _ in range(3):
        answers(runs, [W, W, b, b], call)
    for params in ([W, R, b, d], [R, W, d, b], [W, W, b, b]):
        assert_same_bits(answers(runs, params, call), runs.once(params, call).arrays)


def test_forms_take_turns_and_no_more_than_some_are_kept() -> None:
    program = NetProgram(backward())
    runs = program.runs(AUTO)
    for turn in range(3):
        for count in range(1, 7):
            params, call = parameters(program), call_of(program, (count, turn + 1))
            assert_same_bits(answers(runs, params, call), runs.once(params, call).arrays)
    assert len(runs.idle) <= MOST_FORMS


def test_threads_share_what_is_prepared() -> None:
    program = NetProgram(backward("gru"))
    runs = program.runs(AUTO)
    cases = [(parameters(program), call_of(program, (4, 3))) for _ in range(8)]
    expected = [runs.once(*case).arrays for case in cases]

    def work(_: int) -> None:
        for case, right in zip(cases, expected, strict=True):
            assert_same_bits(answers(runs, *case), right)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(8)))


def test_a_run_that_fails_leaves_the_next_as_it_was() -> None:
    params = {"E": numbers(4, 3), "R": numbers(3, 3)}
    rnn = sn.RNN(lambda x, h, p: (np.tanh(p["E"][x] + h @ p["R"]),) * 2, params, memory=3)
    x = sn.Ragged.from_list([np.array([0, 3, 1])])
    run = sn.vjp(rnn)
    for _ in range(2):
        run(x)
    (y, _), back = run(x)
    gradients = back(sn.Ragged.from_list([numbers(3, 3)]))
    with pytest.raises(InputError, match="outside the rows"):
        run(sn.Ragged.from_list([np.array([0, 4, 1])]))
    (again, _), _ = run(x)
    assert_same_bits(again, y)
    assert gradients.params["E"].shape == (4, 3)


def test_calls_that_are_not_known_by_their_form() -> None:
    program = NetProgram(forward())
    call = call_of(program, (3, 2))
    assert form_of(call) is not None
    long = np.ones(2**14, np.int64)
    assert form_of(Call(Positions.end_to_end(offsets_of(long)))) is None
    assert form_of(Call(call.positions, last_only=True)) is None


def test_values_that_are_repeated_for_all_rows_are_read_row_by_row() -> None:
    """The backward half of masked layers begins with zeros that are one for all rows."""
    layers = sn.Stack(
        [sn.cells.rnn("gru", CELLS["gru"].parameters(inputs, 5)) for inputs in (3, 5)],
    )
    run, x, mask = sn.vjp(layers), numbers(64, 4, 3), RANDOM.random((64, 4)) < 0.5
    seed, made = numbers(64, 4, 5), list[Any]()
    for _ in range(4):  # the first is not prepared
        _, finish = run(x, mask=mask)
        made.append(finish(seed))
    for gradients in made[1:]:
        assert_same_bits(gradients.params, made[0].params)
        assert_same_bits(gradients.inputs, made[0].inputs)
        assert_same_bits(gradients.initial, made[0].initial)
