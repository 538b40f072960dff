"""Prepared calls as one block of addresses: the bits of other calls in new arrays, with pauses and errors."""

import weakref
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from callers import interrupt
from constants import Constants
from same_bits import assert_same_bits
from zoo import rnn_of, uniform

import stepnet as sn
from stepnet.compiler.targets import AtTensors
from stepnet.compiler.targets.cpu import host_processor
from stepnet.compiler.targets.cpu.running import chain, chain_call, prepared_chain
from stepnet.errors import InputError

pytestmark = pytest.mark.usefixtures("same_threads")
PREPARED = 3
"""The number of calls of arrays after which the next one is prepared."""


@pytest.fixture(autouse=True)
def one_thread(same_threads: None) -> None:
    """Calls run in one thread, and so as one block."""
    sn.set_threads(1)


def layers(*kinds: str) -> sn.Stack:
    sizes = [4, *[8 + 8 * place for place in range(len(kinds))]]
    return sn.Stack(
        [rnn_of(kind, a, b, seed=a) for kind, a, b in zip(kinds, sizes[:-1], sizes[1:], strict=True)]
    )


def both() -> sn.Stack:
    def layer(inputs: int, seed: int) -> sn.Bidirectional:
        return sn.Bidirectional(
            rnn_of("gru", inputs, 8, seed=seed), rnn_of("lstm", inputs, 8, seed=seed + 1, reverse=True)
        )

    return sn.Stack([layer(4, 0), layer(16, 2)])


def tagger() -> sn.Graph:
    """Layers, a product with parameters, a value per sequence, and a value that passes by the layers."""
    model, W = both(), uniform(16, 3)
    return sn.Graph(
        lambda x, p: {"tags": model(x)[0] @ p, "mean": sn.reduce(model(x)[0], "mean"), "doubled": 2 * x}, W
    )


def centred() -> sn.Graph:
    """A layer over the outputs of another one less their mean, and the sum of its outputs."""
    below, above = rnn_of("gru", 4, 8), rnn_of("gru", 8, 8, seed=1)

    def model(x: Any, _: Any) -> Any:
        y = below(x)[0]
        y = above(y - sn.expand(sn.reduce(y, "mean"), y))[0]
        return {"y": y, "sum": sn.reduce(y, "sum")}

    return sn.Graph(model)


MODELS: dict[str, Any] = {
    "one": lambda: rnn_of("gru", 4, 8),
    "stack": lambda: layers("gru", "lstm", "gru"),
    "directions": both,
    "graph": tagger,
    "sums between": centred,
}


def prepared(model: Any, x: Any, **options: Any) -> Any:
    for _ in range(PREPARED):
        model(x, **options)
    return model


def test_calls_at_addresses_hold_the_arrays_that_they_read_besides():
    block = chain_call.CallBlock([], prepared_chain.Reach(((),), ((),)), host_processor())
    zeros = np.zeros(3)
    left = weakref.ref(zeros)
    lender = SimpleNamespace(read=0, kinds=(int, int), least=0)
    none: Any = SimpleNamespace(lender=lender, specs=[], places=[], instead={}, gaps=[])
    run = block.at(AtTensors(none, (), (), ()), [zeros], 0, []).run
    del zeros
    assert left() is not None
    assert run([], [])
    assert not run([0], [])


def test_an_array_that_cannot_be_allocated_is_an_error_of_python():
    new: Any = SimpleNamespace(spec=((2**40, 2**10), "f4"), is_zeros=False, axis="")
    table = chain_call.NewTable.of([new], {}, 1)
    block = chain_call.CallBlock([], prepared_chain.Reach(((),), ((),)), host_processor(), table)
    assert not block.run([0])  # it is large, and so left to Python
    table.words[:, -1] = 2**62
    with pytest.raises(MemoryError):
        block.run([0])
    assert block.run([0, 0])  # the list has it already


def test_results_that_machine_code_leaves_to_python_to_allocate():
    """Two sequences of many steps: their outputs have 1.3 and 1.8 MB, on both sides of the bound."""
    model, other = rnn_of("gru", 4, 64), rnn_of("gru", 4, 64)
    calls = [sn.Ragged.from_list([uniform(count, 4), uniform(count, 4)]) for count in (2500, 3500)]
    expected = [other(x) for x in calls]
    prepared(model, calls[0])
    results = [model(x) for x in calls]
    assert_same_bits([each[0].values for each in results], [each[0].values for each in expected])
    assert_same_bits([each[1] for each in results], [each[1] for each in expected])


@pytest.mark.parametrize("name", MODELS)
def test_prepared_calls_give_the_bits_of_the_first_in_new_arrays(name: str, tasks_of_waves: list[int]):
    values = [uniform(2, 6, 4, seed=seed) for seed in range(3)]
    expected = [MODELS[name]()(x) for x in values]
    model = prepared(MODELS[name](), values[0])
    tasks_of_waves.clear()
    results = [model(x) for x in values]
    assert set(tasks_of_waves) == {1}
    assert_same_bits(results, expected)  # after all calls: none wrote into the results of another


def gradients(run: Any, x: Any) -> Any:
    (outputs, final), backward = run(x)
    return outputs, vars(backward(outputs, final))


@pytest.mark.long(every=2)
@pytest.mark.parametrize("name", MODELS)
def test_gradients_of_padded_sequences_are_prepared(name: str, monkeypatch: pytest.MonkeyPatch):
    """With gaps between sequences in place, or packed where a part reads all steps."""
    run, x = sn.vjp(MODELS[name]()), uniform(3, 6, 4)

    def call() -> Any:
        results, backward = run(x, lengths=[6, 2, 5])
        gradients = backward(results) if isinstance(run.model, sn.Graph) else backward(*results)
        return results, vars(gradients)

    expected = call()
    call()
    monkeypatch.setattr(chain.KernelChain, "started", None)  # the way of calls that are not prepared
    for _ in range(2):
        assert_same_bits(call(), expected)


@pytest.mark.parametrize("large", [True, False])
def test_contracts_and_sums_are_tasks_of_a_prepared_gradient(
    large: bool, tasks_of_waves: list[int], monkeypatch: pytest.MonkeyPatch, constants: Constants
):
    if large:  # new arrays of values between the loop and these, and one buffer of all totals
        constants(chain_call, LARGE=0)
        monkeypatch.setattr(f"{chain_call.ChainArrays.__module__}.MOSTLY_FULL", 0)
    values = [uniform(9, 6, 4, seed=seed) for seed in range(3)]
    expected = [gradients(sn.vjp(rnn_of("gru", 4, 8)), x) for x in values]
    run = sn.vjp(rnn_of("gru", 4, 8))
    for _ in range(PREPARED):
        gradients(run, values[0])
    monkeypatch.setattr(chain_call.FinishCall, "run_rest", None)  # nothing is left for Python
    tasks_of_waves.clear()
    assert_same_bits([gradients(run, x) for x in values], expected)
    assert set(tasks_of_waves) == {1}


def test_threads_share_the_contracts_of_a_prepared_gradient(tasks_of_waves: list[int], constants: Constants):
    """Beside the tasks that they share anyway, which depend on the processor."""
    values = [uniform(9, 6, 4, seed=seed) for seed in range(3)]
    expected = [gradients(sn.vjp(rnn_of("gru", 4, 64)), x) for x in values]
    sn.set_threads(2)
    shared = list[int]()
    for least in (2**40, 0):
        constants("stepnet.compiler.targets.cpu.products.contract", SHARED=least)
        run = sn.vjp(rnn_of("gru", 4, 64))
        for _ in range(PREPARED):
            gradients(run, values[0])
        tasks_of_waves.clear()
        assert_same_bits([gradients(run, x) for x in values], expected)
        shared.append(tasks_of_waves.count(2))
    assert shared[0] < shared[1] == len(tasks_of_waves)


@pytest.mark.parametrize("name", MODELS)
def test_large_values_between_kernels_are_not_kept(
    name: str, monkeypatch: pytest.MonkeyPatch, constants: Constants
):
    made, of, x = list[chain_call.PreparedChainCall](), chain_call.PreparedChainCall.of, uniform(2, 6, 4)

    def noted(*given: Any) -> chain_call.PreparedChainCall | None:
        chain = of(*given)
        made.extend([] if chain is None else [chain])
        return chain

    monkeypatch.setattr(chain_call.PreparedChainCall, "of", noted)
    expected = MODELS[name]()(x)
    prepared(MODELS[name](), x)
    small, made[:] = sum(chain.bytes for chain in made), []
    constants(chain_call, LARGE=0)
    model = prepared(MODELS[name](), x)
    assert sum(chain.bytes for chain in made) < small or name == "one"
    for _ in range(2):
        assert_same_bits(model(x), expected)


def test_initial_memories_come_and_go():
    x = uniform(2, 5, 4)
    given = [(uniform(2, 8, seed=1), {"h": uniform(2, 16, seed=2), "c": uniform(2, 16, seed=3)}), None]
    expected = [layers("gru", "lstm")(x, initial) for initial in given]
    model = layers("gru", "lstm")
    for _ in range(5):
        for initial, right in zip(given, expected, strict=True):
            assert_same_bits(model(x, initial), right)


class Subclass(np.ndarray):
    """Arrays whose type is not that of NumPy's own."""


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("kind", ["subclass", "read-only", "missing"])
def test_arrays_of_every_kind_are_read_in_place(kind: str, threads: int, monkeypatch: pytest.MonkeyPatch):
    """Only those that are no plain arrays take the slower way, of which machine code or Python says so."""
    whole, slower = chain_call.with_zeros, list[Any]()
    monkeypatch.setattr(chain_call, "with_zeros", lambda *given: slower.append(kind) or whole(*given))
    sn.set_threads(threads)
    rnn, x = rnn_of("gru", 4, 8), uniform(2, 6, 4)
    expected = rnn(x)
    call = rnn.read(x, None, None, None, False, mask=None, masked="repeat", begun=None, time_major=False)
    prepared_call = call.running.bound(("llvm",)).prepare(call.call)
    assert prepared_call is not None
    given = {"subclass": x.view(Subclass), "read-only": x.copy()}.get(kind, x).reshape(-1, 4)
    given.flags.writeable = kind != "read-only"
    memory = None if kind == "missing" else np.zeros((2, 8), "f4")
    for _ in range(2):
        (outputs,), (final,), _ = prepared_call.run([given, memory], None)
        assert_same_bits((outputs.reshape(*x.shape[:2], 8), final), expected)
    assert slower == [] if kind == "read-only" else slower == [kind, kind]


@pytest.mark.parametrize("separate_outputs", [None, 0])
def test_gaps_between_padded_sequences_are_zeros(
    separate_outputs: int | None, monkeypatch: pytest.MonkeyPatch
):
    """Also in arrays that hold other numbers from before, with a buffer for each or one for all."""
    monkeypatch.setattr(np, "empty", lambda shape, dtype=float: np.full(shape, 7, dtype))
    rnn, x, lengths = rnn_of("gru", 4, 8), uniform(3, 7, 4), np.array([7, 2, 5])
    control: Any = {"mask": None, "masked": "repeat", "begun": None, "time_major": False}
    reading = rnn.read(x, None, None, lengths, False, **control)
    call = replace(reading.call, separate_outputs=separate_outputs)
    prepared = reading.running.bound(("llvm",)).prepare(call)
    assert prepared is not None
    for seed in range(3):
        values = uniform(3, 7, 4, seed=seed)
        (outputs,), _, _ = prepared.run([values.reshape(21, 4), None], None)
        assert_same_bits(outputs.reshape(3, 7, 8), rnn(values, lengths=lengths)[0])
        assert not outputs.reshape(3, 7, 8)[1, 2:].any()


@pytest.mark.parametrize("name", MODELS)
def test_calls_that_pause_after_every_block_give_the_same_bits_and_say_how_far_they_are(
    name: str, constants: Constants
):
    constants(prepared_chain, SLICE=1e-9)
    x = uniform(1, 2000, 4)
    model = MODELS[name]()
    expected = model(x)
    prepared(model, x)
    for _ in range(2):
        seen = list[sn.Progress]()
        with sn.progress(seen.append):
            assert_same_bits(model(x), expected)
        steps = [now.steps for now in seen]
        assert len(seen) > 3
        assert steps == sorted(steps)
        assert seen[-1].is_done


@pytest.mark.parametrize("name", MODELS)
def test_an_interrupt_leaves_nothing_behind(name: str, constants: Constants):
    constants(prepared_chain, SLICE=1e-9)
    x = uniform(1, 2000, 4)
    model = MODELS[name]()
    expected = model(x)
    prepared(model, x)
    for count in (1, 2, 3):
        interrupt(count, model, x)
        assert_same_bits(model(x), expected)


def of_lengths(*lengths: int, seed: int = 0) -> sn.Ragged:
    values = uniform(sum(lengths), 4, seed=seed)
    return sn.Ragged(values, (np.cumsum([0, *lengths]).astype(np.int64),))


def prepared_for_lengths(name: str) -> Any:
    """A model with a call that is prepared for two sequences of any lengths, about 1,700 steps together."""
    model = MODELS[name]()
    for length in (1500, 1400, 1300):
        model(of_lengths(length, 200))
    return model


@pytest.mark.parametrize("name", ["one", "stack", "directions", "sums between"])
def test_calls_prepared_for_any_lengths_pause_too(
    name: str, monkeypatch: pytest.MonkeyPatch, constants: Constants
):
    constants(prepared_chain, SLICE=1e-9)
    model = prepared_for_lengths(name)
    for lengths in ([900, 700], [600, 1100]):
        x, seen = of_lengths(*lengths), list[sn.Progress]()
        with monkeypatch.context() as patch, sn.progress(seen.append):
            patch.setattr(prepared_chain.PreparedChain, "__init__", None)  # nothing new is prepared
            found = model(x)
        steps = [now.steps for now in seen]
        assert len(seen) > 3
        assert steps == sorted(steps)
        assert (seen[-1].is_done, seen[-1].sequences, seen[-1].steps % sum(lengths)) == (True, 2, 0)
        assert_same_bits(found, MODELS[name]()(x))


def test_an_interrupt_of_a_call_prepared_for_any_lengths(constants: Constants):
    constants(prepared_chain, SLICE=1e-9)
    model = prepared_for_lengths("directions")

    def interrupt(now: sn.Progress) -> None:
        raise KeyboardInterrupt

    for lengths in ([900, 700], [600, 1100]):
        x = of_lengths(*lengths)
        with sn.progress(interrupt), pytest.raises(KeyboardInterrupt):
            model(x)
        assert_same_bits(model(x), MODELS["directions"]()(x))


@pytest.mark.parametrize("wrong", [0, 1])
def test_an_index_outside_a_table_is_an_error_and_the_next_call_is_right(wrong: int):
    def step(x: Any, h: Any, p: Any) -> tuple[Any, Any]:
        h = np.tanh(p["E"][x] + h)
        return x, h

    rows = [10, 10]
    rows[wrong] = 3
    model = sn.Stack([sn.RNN(step, {"E": uniform(count, 8)}, memory=8) for count in rows])
    right, outside = np.array([[0, 2, 1]]), np.array([[0, 5, 1]])
    expected = prepared(model, right)(right)
    for _ in range(2):
        with pytest.raises(InputError, match="outside the rows of the parameter"):
            model(outside)
        assert_same_bits(model(right), expected)


def test_inputs_that_cannot_be_written_are_read():
    x = uniform(2, 5, 4)
    expected = layers("gru", "gru")(x)
    model, x.flags.writeable = prepared(layers("gru", "gru"), x), False
    for _ in range(2):
        assert_same_bits(model(x), expected)


def test_prepared_calls_read_parameters_that_training_has_changed():
    """They are replaced in place, also those that a product between kernels reads."""
    model = tagger()
    run, x = sn.vjp(model), uniform(2, 6, 4)
    for seed in range(5):
        changed = uniform(16, 3, seed=seed)
        outputs, _ = run(x, params=changed)
        assert_same_bits(outputs, model.with_params(changed)(x))
