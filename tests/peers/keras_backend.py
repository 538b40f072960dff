"""Keras on the backend that KERAS_BACKEND names: stepnet's layers beside Keras' own loop, check by check.

python keras_backend.py FILE        writes as JSON what each check says: nothing where it holds
"""

import json
import os
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

import keras
import numpy as np
from tolerance import assert_close

import stepnet.keras

BACKEND = keras.backend.backend()
BATCH, STEPS, INPUTS, UNITS = 4, 6, 3, 5
LENGTHS = np.array([6, 3, 0, 1])[:, None]
MASKS = {
    "none": None,
    "right": np.arange(STEPS) < LENGTHS,
    "left": np.arange(STEPS) >= STEPS - LENGTHS,
    "gaps": np.array([[1, 0, 1, 1, 0, 1], [0, 1, 0, 0, 1, 0], [0] * 6, [1, 1, 1, 0, 0, 1]], bool),
}
OURS, THEIRS = stepnet.keras, keras.layers
CHECKS: dict[str, Callable[[], None]] = {}


def check(function: Callable[[], None]) -> Callable[[], None]:
    """One of the checks."""
    CHECKS[function.__name__] = function
    return function


def numbers(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng([seed, *shape]).normal(size=shape).astype("float32")


def built(layer: Any, shape: Any = (BATCH, STEPS, INPUTS)) -> Any:
    """A layer with weights that are no zeros."""
    layer.build(shape)
    layer.set_weights([numbers(*w.shape, seed=place) / 2 for place, w in enumerate(layer.get_weights())])
    return layer


def total(results: list[Any], cos: Callable[[Any], Any]) -> Any:
    """One number of all results, in which no two numbers count the same."""
    ops = keras.ops
    return sum(ops.sum(one * ops.reshape(cos(counting(one)), one.shape)) for one in results)


def counting(one: Any) -> Any:
    """0, 1, 2, ... as many as a result has numbers, in its dtype."""
    return keras.ops.arange(int(np.prod(one.shape)), dtype=one.dtype)


def answers(layer: Any, mask: str = "none", training: bool = False, dtype: str = "float32") -> list[Any]:
    """Results and all gradients of a layer: in a graph, as models run it."""
    x = numbers(BATCH, STEPS, INPUTS).astype(dtype)
    states = [
        numbers(BATCH, size, seed=7 + place).astype(dtype)
        for place, size in enumerate(keras.tree.flatten(layer.state_size))
    ]
    given = MASKS[mask]

    def results(x: Any, states: Any) -> list[Any]:
        sizes = [list(size) if keras.tree.is_nested(size) else size for size in layer.state_size]
        begin = keras.tree.pack_sequence_as(sizes, list(states))
        return keras.tree.flatten(layer(x, initial_state=begin, mask=given, training=training))

    if BACKEND == "tensorflow":
        return on_tensorflow(layer, results, x, states)
    if BACKEND == "jax":
        return on_jax(layer, results, x, states)
    return results(x, states)


def on_tensorflow(layer: Any, results: Any, x: Any, states: Any) -> list[Any]:
    """The results, and the gradients of weights, inputs and states."""
    import tensorflow as tf

    @tf.function
    def run(x: Any, states: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch([x, *states])
            made = results(x, states)
            one = total(made, tf.cos)
        return made, tape.gradient(one, [*(w.value for w in layer.trainable_weights), x, *states])

    made, gradients = run(tf.constant(x), list(map(tf.constant, states)))
    return [*made, *gradients]


def on_jax(layer: Any, results: Any, x: Any, states: Any) -> list[Any]:
    """The results, and the gradients of weights, inputs and states."""
    import jax

    def run(weights: Any, x: Any, states: Any) -> Any:
        pairs = list(zip(layer.trainable_variables, weights, strict=True))
        with keras.StatelessScope(pairs):
            made = results(x, states)
        return total(made, jax.numpy.cos), made

    weights = [variable.value for variable in layer.trainable_variables]
    gradients, made = jax.jit(jax.grad(run, (0, 1, 2), has_aux=True))(weights, x, states)
    return [*made, *jax.tree_util.tree_leaves(gradients)]


def assert_same(ours: list[Any], theirs: list[Any]) -> None:
    """Asserts that answers agree but for rounding: each may be off by the tolerance."""
    assert len(ours) == len(theirs)
    for one, other in zip(ours, theirs, strict=True):
        one, other = np.asarray(one), np.asarray(other)
        assert one.dtype == other.dtype
        assert_close(one / 2, other / 2, STEPS, UNITS)


def counted(call: Callable[[], Any]) -> tuple[Any, int, int]:
    """The results of a call, and the numbers of layers in it that ran compiled, and by Keras' own loop."""
    before = stepnet.keras.counters()
    made = call()
    after = stepnet.keras.counters()
    return made, after.fast - before.fast, after.slow - before.slow


def compare(make: Callable[[Any], Any], *args: Any) -> None:
    """Asserts that a layer gives the same as Keras' own, and ran compiled."""
    made, fast, slow = counted(lambda: answers(built(make(OURS)), *args))
    assert (fast, slow) == (1, 0), (fast, slow)
    assert_same(made, answers(built(make(THEIRS)), *args))


def options(**further: Any) -> dict[str, Any]:
    return {"return_state": True, **further}


@check
def plain() -> None:
    for kind in ("SimpleRNN", "GRU", "LSTM"):
        compare(lambda where, kind=kind: getattr(where, kind)(UNITS, **options(return_sequences=True)))


@check
def masks() -> None:
    for place, mask in enumerate(("right", "left", "gaps")):
        for sequences in (True, False):
            kind = ("LSTM", "GRU")[(place + sequences) % 2]
            compare(
                lambda where, kind=kind, sequences=sequences: getattr(where, kind)(
                    UNITS, **options(return_sequences=sequences)
                ),
                mask,
            )


@check
def backwards() -> None:
    for mask, sequences in (("none", True), ("right", True), ("gaps", False)):
        compare(
            lambda where, sequences=sequences: where.GRU(
                UNITS, **options(go_backwards=True, return_sequences=sequences)
            ),
            mask,
        )


@check
def zero_output_for_mask() -> None:
    for mask, sequences in (("gaps", True), ("left", False)):
        compare(
            lambda where, sequences=sequences: where.GRU(
                UNITS, **options(zero_output_for_mask=True, return_sequences=sequences)
            ),
            mask,
        )


@check
def unrolled() -> None:
    compare(lambda where: where.LSTM(UNITS, **options(unroll=True, return_sequences=True)), "gaps")


@check
def dropout() -> None:
    compare(
        lambda where: where.GRU(
            UNITS, **options(dropout=0.3, recurrent_dropout=0.2, seed=3, return_sequences=True)
        ),
        "gaps",
        True,
    )


@check
def options_of_cells() -> None:
    compare(
        lambda where: where.GRU(
            UNITS, **options(reset_after=False, use_bias=False, activation="relu", implementation=1)
        )
    )


@check
def stacked_cells() -> None:
    compare(
        lambda where: where.RNN(
            THEIRS.StackedRNNCells([THEIRS.LSTMCell(4), THEIRS.LSTMCell(UNITS)]),
            **options(return_sequences=True),
        ),
        "gaps",
    )


@check
def double_precision() -> None:
    if BACKEND == "tensorflow":
        compare(lambda where: where.LSTM(UNITS, dtype="float64", **options()), "right", False, "float64")
        return
    import jax

    jax.config.update("jax_enable_x64", True)
    try:
        made, theirs, single = (
            answers(built(where.LSTM(UNITS, dtype=dtype, **options())), "right", dtype=dtype)
            for where, dtype in ((OURS, "float64"), (THEIRS, "float64"), (OURS, "float32"))
        )
    finally:
        jax.config.update("jax_enable_x64", False)
    for one, other, rounded in zip(made, theirs, single, strict=True):
        assert one.dtype == other.dtype == "float64"
        # Keras computes products in float32 here: ours lie no farther from them than both in float32.
        assert_close(np.asarray(one) / 2, np.asarray(other) / 2, STEPS, UNITS, "float32")
        assert_close(np.asarray(one) / 2, np.asarray(rounded) / 2, STEPS, UNITS, "float32")


@check
def low_precision() -> None:
    rounded, exact = (
        built(OURS.GRU(UNITS, dtype=dtype, return_sequences=True))(numbers(BATCH, STEPS, INPUTS))
        for dtype in ("mixed_bfloat16", "float32")
    )
    assert keras.backend.standardize_dtype(rounded.dtype) == "bfloat16"
    np.testing.assert_allclose(np.asarray(keras.ops.cast(rounded, "float32")), np.asarray(exact), atol=0.03)


@check
def outside_of_graphs() -> None:
    made, fast, slow = counted(
        lambda: built(OURS.LSTM(UNITS, return_state=True))(numbers(BATCH, STEPS, INPUTS), mask=MASKS["gaps"])
    )
    assert (fast, slow) == (1, 0)
    theirs = built(THEIRS.LSTM(UNITS, return_state=True))(numbers(BATCH, STEPS, INPUTS), mask=MASKS["gaps"])
    assert_same(list(made), list(theirs))


@check
def empty_batches_and_sequences() -> None:
    layer = built(OURS.LSTM(UNITS, return_sequences=True, return_state=True))
    outputs, h, c = layer(numbers(0, STEPS, INPUTS))
    assert (tuple(outputs.shape), tuple(h.shape)) == ((0, STEPS, UNITS), (0, UNITS))
    state = [numbers(BATCH, UNITS, seed=5), numbers(BATCH, UNITS, seed=6)]
    outputs, h, c = layer(numbers(BATCH, 0, INPUTS), initial_state=state)
    assert tuple(outputs.shape) == (BATCH, 0, UNITS)
    assert_same([h, c], state)
    outputs, h, c = layer(numbers(BATCH, 0, INPUTS))
    assert tuple(outputs.shape) == (BATCH, 0, UNITS)
    assert_same([h, c], [0 * part for part in state])


def second_gradients_of(layer: Any) -> list[Any]:
    """The gradients of weights of the square of the gradient of the inputs."""
    x, mask = numbers(BATCH, STEPS, INPUTS), MASKS["gaps"]
    if BACKEND == "tensorflow":
        import tensorflow as tf

        @tf.function
        def run(x: Any) -> Any:
            with tf.GradientTape() as outer:
                with tf.GradientTape() as inner:
                    inner.watch(x)
                    one = tf.reduce_sum(layer(x, mask=mask) ** 2)
                square = tf.reduce_sum(inner.gradient(one, x) ** 2)
            return outer.gradient(square, [w.value for w in layer.trainable_weights])

        return run(tf.constant(x))
    import jax

    def first(x: Any, weights: Any) -> Any:
        with keras.StatelessScope(list(zip(layer.trainable_variables, weights, strict=True))):
            return jax.numpy.sum(layer(x, mask=mask) ** 2)

    weights = [variable.value for variable in layer.trainable_variables]
    return jax.jit(jax.grad(lambda weights: jax.numpy.sum(jax.grad(first)(x, weights) ** 2)))(weights)


@check
def second_gradients() -> None:
    for sequences in (True, False):
        ours, theirs = (
            second_gradients_of(built(where.GRU(UNITS, return_sequences=sequences)))
            for where in (OURS, THEIRS)
        )
        for one, other in zip(ours, theirs, strict=True):
            assert_close(np.asarray(one) / 8, np.asarray(other) / 8, STEPS, UNITS)


# ---- models ------------------------------------------------------------------------------------------------

WORDS = np.random.default_rng(0).integers(1, 30, size=(24, 10))
WORDS[:8, 6:], WORDS[16:, :3] = 0, 0
LABELS = (WORDS == 7).any(1)[:, None].astype("float32")


def model(where: Any, **options: Any) -> Any:
    """A model of masks, both dropouts, and a layer of each kind."""
    keras.utils.set_random_seed(0)
    made = keras.Sequential(
        [
            keras.layers.Embedding(30, INPUTS, mask_zero=True),
            where.LSTM(UNITS, dropout=0.2, recurrent_dropout=0.2, return_sequences=True),
            where.Bidirectional(where.GRU(UNITS)),
            keras.layers.Dense(1, activation="sigmoid"),
        ]
    )
    made.compile(keras.optimizers.SGD(0.5), "binary_crossentropy", **options)
    return made


def learnt(where: Any, **options: Any) -> list[Any]:
    """Three epochs: losses, what evaluate says, and predictions."""
    made = model(where, **options)
    losses = made.fit(WORDS, LABELS, batch_size=8, epochs=3, shuffle=False, verbose=0).history["loss"]
    return [losses, made.evaluate(WORDS, LABELS, verbose=0), made.predict(WORDS, verbose=0)]


def assert_learnt_same(ours: list[Any], theirs: list[Any]) -> None:
    """Asserts that both learnt the same: nine updates carry what rounding makes of each."""
    for one, other in zip(ours, theirs, strict=True):
        assert_close(np.asarray(one, "float32") / 18, np.asarray(other, "float32") / 18, STEPS, UNITS)


@check
def three_epochs() -> None:
    made, fast, slow = counted(lambda: learnt(OURS))
    assert fast > 0
    assert slow == 0
    assert_learnt_same(made, learnt(THEIRS))


@check
def three_epochs_of_a_model_as_it_is() -> None:
    with stepnet.keras.accelerate():
        made, fast, slow = counted(lambda: learnt(THEIRS))
    assert fast > 0
    assert slow == 0
    assert_learnt_same(made, learnt(THEIRS))


@check
def stateful() -> None:
    losses = []
    for where in (OURS, THEIRS):
        layer = where.GRU(UNITS, stateful=True)
        made = keras.Sequential([keras.Input(batch_shape=(BATCH, STEPS, INPUTS)), layer])
        made.compile(keras.optimizers.SGD(0.1), "mse")
        x, y = numbers(BATCH, STEPS, INPUTS), np.ones((BATCH, UNITS))
        layer.set_weights([numbers(*w.shape, seed=place) / 2 for place, w in enumerate(layer.get_weights())])
        losses.append([made.train_on_batch(x, y) for _ in range(3)])
        losses[-1].append(made.predict(x, verbose=0))
    for one, other in zip(*losses, strict=True):
        assert_close(np.asarray(one, "float32") / 6, np.asarray(other, "float32") / 6, STEPS, UNITS)


@check
def a_loaded_model() -> None:
    before = model(THEIRS)
    right = before.predict(WORDS, verbose=0)
    with tempfile.TemporaryDirectory() as folder:
        before.save(Path(folder) / "model.keras")
        with stepnet.keras.accelerate():
            after = keras.models.load_model(Path(folder) / "model.keras")
            made, fast, slow = counted(lambda: after.predict(WORDS, verbose=0))
    assert (fast, slow) == (3, 0), (fast, slow)
    assert_same([made], [right])


@check
def an_own_cell_runs_keras_loop() -> None:
    class Own(keras.layers.Layer):
        state_size = UNITS

        def build(self, shape: Any) -> None:
            self.kernel = self.add_weight(shape=(shape[-1], UNITS))

        def call(self, inputs: Any, states: Any) -> Any:
            h = keras.ops.tanh(inputs @ self.kernel + states[0])
            return h, [h]

    layer = OURS.RNN(Own(), return_state=True)
    made, fast, slow = counted(lambda: answers(built(layer)))
    assert (fast, slow) == (0, 1)
    assert f"on the {BACKEND} backend" in stepnet.keras.report(layer).left[layer.path]
    assert_same(made, answers(built(THEIRS.RNN(Own(), return_state=True))))


@check
def xla_runs_keras_loop() -> None:
    if BACKEND != "tensorflow":
        return
    made = model(OURS, jit_compile=True)
    _, fast, slow = counted(lambda: made.train_on_batch(WORDS, LABELS))
    assert fast == 0
    assert slow > 0
    assert "XLA" in str(stepnet.keras.report(made))


def operations(graph: Any) -> set[str]:
    """The names of the operations of a graph of TensorFlow, and of the functions that it calls."""
    known = graph.as_graph_def()
    return {
        node.op for nodes in (known.node, *(f.node_def for f in known.library.function)) for node in nodes
    }


@check
def saved_graphs_hold_keras_operations() -> None:
    if BACKEND == "jax":
        import jax
        from jax import export

        layer = built(OURS.GRU(UNITS))
        function = jax.jit(lambda x: layer(x))
        text = export.export(function)(numbers(BATCH, STEPS, INPUTS)).mlir_module()
        assert "while" in text
        assert "callback" not in text
        return
    import tensorflow as tf

    made = keras.Sequential([keras.Input((STEPS, INPUTS)), OURS.GRU(UNITS)])
    x = numbers(BATCH, STEPS, INPUTS)
    right, fast, _ = counted(lambda: made.predict(x, verbose=0))
    assert fast == 1
    with tempfile.TemporaryDirectory() as folder:
        made.export(f"{folder}/export", verbose=False)
        tf.saved_model.save(made, f"{folder}/save")
        for name, entry in (("export", "serve"), ("save", "serving_default")):
            loaded = tf.saved_model.load(f"{folder}/{name}").signatures[entry]
            assert not {one for one in operations(loaded.graph) if "PyFunc" in one}
            (output,) = loaded(tf.constant(x)).values()
            assert_same([output], [right])
    assert "exported" in str(stepnet.keras.report(made))


if __name__ == "__main__":
    said = {}
    for name, function in CHECKS.items():
        try:
            function()
            said[name] = ""
        except Exception:
            said[name] = traceback.format_exc()[-3000:]
        print(name, said[name] or "holds", flush=True)
    Path(sys.argv[1]).write_text(json.dumps(said), encoding="utf-8")
    os._exit(0)  # without the seconds that frameworks take to leave
