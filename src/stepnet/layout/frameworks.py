"""The outputs that the frameworks themselves compute from weights of their layouts, if they are installed.

A row of `FRAMEWORKS` lists the layouts that a framework runs, the modules that must be installed, a check for
weights that it cannot run, and a function that runs weights. A framework is imported only when it is used.
"""

import importlib
import json
import os
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from stepnet.compiler.values.records import dataclass
from stepnet.errors import StepnetError
from stepnet.layout.record import Record
from stepnet.layout.semantics import Semantics
from stepnet.layout.sizes import Sizes

Array = np.ndarray[Any, np.dtype[Any]]
Run = Callable[[Array], Array]  # [steps, inputs] -> [steps, outputs]

NOT_INSTALLED = "it is not installed"


@dataclass(frozen=True)
class RunnerWeights:
    """Weights as the runner of a framework takes them: float64 arrays, and all sizes and semantics.

    record: the layout of the arrays. reverse: True if the layer runs from each sequence's last step.
    merge: how the outputs of two directions are merged: "concat", "sum", "average" or "product".
    """

    record: Record
    arrays: Mapping[str, Array]
    sizes: Sizes
    semantics: Semantics
    reverse: bool = False
    merge: str = "concat"

    @property
    def settings(self) -> dict[str, Any]:
        """The settings of the framework's layer for these weights, by its own names and values."""
        return {
            setting.name: value if setting.values is None else setting.values[value]
            for field, setting in self.record.settings().items()
            for value in [getattr(self.semantics, field)]
        }

    def contradiction(self) -> str | None:
        """Returns the reason why the framework cannot compute the function of these weights: it has one
        setting for two fields of `Semantics` that have different values here. None if it can.
        """
        settings = self.settings
        for field, setting in self.record.settings().items():
            value = getattr(self.semantics, field)
            theirs = value if setting.values is None else setting.values[value]
            if theirs != settings[setting.name]:
                return f"it has one {setting.name} for {theirs} and {settings[setting.name]}"
        return None

    def name_prefix(self, layer: int, direction: int | None = None) -> str:
        """Returns the prefix, such as "1/forward/", of the names of the arrays of a layer, or of one of its
        directions: the number of the layer if there are several, and the direction if there are two.
        direction: 0 or 1; None for both.
        """
        direction_name = (
            "" if direction is None or self.sizes.directions == 1 else self.record.directions[direction]
        )
        return f"{layer}/{direction_name}" if self.sizes.layers > 1 else direction_name


@dataclass(frozen=True)
class Answer:
    """The outputs of a framework (a module's name) for each sequence, or the reason why it was not run."""

    framework: str
    version: str | None = None
    outputs: tuple[Array, ...] | None = None
    reason: str | None = None


@dataclass(frozen=True)
class Framework:
    """A framework that runs weights of its layouts.

    Attributes:
        name: Its module.
        layouts: The layouts that it runs.
        needs: Returns the modules that must be installed, the framework first. Keras also needs its backend,
            which is known only at run time.
        refuse: Returns the reason why it cannot run some weights, or None.
        prepare: Returns the function that runs one sequence.
    """

    name: str
    layouts: tuple[str, ...]
    needs: Callable[[], tuple[str, ...]]
    refuse: Callable[[RunnerWeights], str | None]
    prepare: Callable[[RunnerWeights], Run]

    def missing(self) -> str | None:
        """Returns why the framework cannot run, a missing module, or None. Imports nothing."""
        return missing(self.needs())


def missing(modules: Sequence[str]) -> str | None:
    """Returns why a framework cannot run: a Python module that it needs is not installed; None if all are.
    Imports nothing.

    modules: the modules that it needs, the framework first.
    """
    lacking = [module for module in modules if find_spec(module) is None]
    if not lacking:
        return None
    if lacking[0] == modules[0]:
        return NOT_INSTALLED
    advice = "; KERAS_BACKEND=torch sets another backend" if modules[0] == "keras" else ""
    return f"it needs {lacking[0]}, which is not installed{advice}"


def answer(weights: RunnerWeights, sequences: Iterable[Array]) -> Answer | None:
    """Runs weights in the framework of their layout (arrangement of weights), to compare its outputs with
    stepnet's. Returns the outputs for sequences [steps, inputs], or the reason why there are none; None if no
    framework runs the layout.
    """
    row = next((framework for framework in FRAMEWORKS if weights.record.name in framework.layouts), None)
    if row is None:
        return None
    reason = row.missing() or weights.contradiction() or row.refuse(weights)
    if reason is not None:
        return Answer(row.name, reason=reason)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # such as hints about speed
        try:
            version = importlib.import_module(row.name).__version__
            run = row.prepare(weights)
        except StepnetError:
            raise
        except (ImportError, ValueError) as error:  # a version whose interface differs
            return Answer(row.name, reason=f"{type(error).__name__}: {error}")
        return Answer(row.name, version, tuple(run(sequence) for sequence in sequences))


def merge_refusal(weights: RunnerWeights) -> str | None:
    """Returns why a framework cannot merge the outputs of two directions as the weights say, or None."""
    if weights.sizes.directions == 1 or weights.merge == "concat":
        return None
    return f"it concatenates the outputs of both directions, and here merge is {weights.merge!r}"


# ---- PyTorch -----------------------------------------------------------------------------------------------

TORCH = {"torch.rnn": "RNN", "torch.gru": "GRU", "torch.lstm": "LSTM", "torch.lstm_projection": "LSTM"}


def torch_refuses(weights: RunnerWeights) -> str | None:
    """Returns the reason why torch.nn has no module for these weights; None if it has one."""
    sizes = weights.sizes
    if weights.reverse:
        return "it has no layer that runs backward alone"
    if sizes.projected is not None and sizes.projected >= sizes.hidden:
        return f"it projects to less than {sizes.hidden} hidden, and here to {sizes.projected}"
    return merge_refusal(weights)


def torch_run(weights: RunnerWeights) -> Run:
    """Builds a torch.nn module of these weights, in float64; returns a function that runs one sequence."""
    torch: Any = importlib.import_module("torch")
    sizes = weights.sizes
    module = getattr(torch.nn, TORCH[weights.record.name])(
        sizes.inputs,
        sizes.hidden,
        num_layers=sizes.layers,
        bidirectional=sizes.directions > 1,
        bias="bias_ih_l0" in weights.arrays,
        dtype=torch.float64,
        **({"proj_size": sizes.projected} if sizes.projected else {}),
        **weights.settings,
    )
    module.load_state_dict({name: torch.from_numpy(array) for name, array in weights.arrays.items()})

    def run(x: Array) -> Array:
        """Runs the module on one sequence [steps, inputs]."""
        with torch.inference_mode():
            return module(torch.from_numpy(x))[0].numpy()

    return run


# ---- Keras -------------------------------------------------------------------------------------------------

KERAS = {
    "keras.rnn": "SimpleRNN",
    "keras.gru": "GRU",
    "keras.gru_reset_before": "GRU",
    "keras.lstm": "LSTM",
}
MERGES = {"concat": "concat", "sum": "sum", "average": "ave", "product": "mul"}


def keras_needs() -> tuple[str, ...]:
    """Returns the modules that must be installed to run Keras: Keras and its backend, as set by
    KERAS_BACKEND, else by Keras' file of settings, else TensorFlow. An imported Keras has its backend.
    """
    if "keras" in sys.modules:
        return ("keras",)
    backend: Any = os.environ.get("KERAS_BACKEND")
    settings = Path(os.environ.get("KERAS_HOME") or "~/.keras").expanduser() / "keras.json"
    if not backend and settings.exists():
        backend = json.loads(settings.read_text(encoding="utf-8")).get("backend")
    return "keras", backend or "tensorflow"


def keras_run(weights: RunnerWeights) -> Run:
    """Builds Keras layers of these weights; returns the function that runs them on one sequence. They have
    the dtype that Keras uses for float64: it computes products in float32 whatever a layer's dtype.
    """
    keras: Any = importlib.import_module("keras")
    layers = [keras_layer(keras, weights, layer) for layer in range(weights.sizes.layers)]

    def run(x: Array) -> Array:
        """Runs Keras' layers, one after another, on one sequence [steps, inputs]; returns the outputs [steps,
        features].
        """
        for layer in layers:
            x = np.asarray(keras.ops.convert_to_numpy(layer(x[None])))[0]
            # With go_backwards, Keras returns the last step first.
            x = x[::-1].copy() if weights.reverse else x
        return x

    return run


def keras_layer(keras: Any, weights: RunnerWeights, layer: int) -> Any:
    """Builds layer number `layer` of the weights as a Keras layer with these weights, of one direction or
    both, to run it for a comparison. keras: the imported library.
    """
    both, dtype = weights.sizes.directions > 1, keras.backend.result_type("float64", "float64")
    new_layer = getattr(keras.layers, KERAS[weights.record.name])(
        weights.sizes.hidden,
        return_sequences=True,
        go_backwards=weights.reverse,
        use_bias=f"{weights.name_prefix(layer, 0)}bias" in weights.arrays,
        dtype=dtype,
        **({"reset_after": weights.semantics.reset == "after"} if weights.record.cell == "gru" else {}),
        **weights.settings,
    )
    if both:
        new_layer = keras.layers.Bidirectional(new_layer, merge_mode=MERGES[weights.merge], dtype=dtype)
    new_layer.build((None, None, weights.sizes.inputs_of(layer)))
    for direction, one_way in enumerate(
        [new_layer.forward_layer, new_layer.backward_layer] if both else [new_layer]
    ):
        name_prefix = weights.name_prefix(layer, direction)
        names = [f"{name_prefix}{name}" for name in ("kernel", "recurrent_kernel", "bias")]
        one_way.set_weights([weights.arrays[name] for name in names if name in weights.arrays])
    return new_layer


# ---- ONNX --------------------------------------------------------------------------------------------------

ONNX = ("onnx.rnn", "onnx.gru", "onnx.lstm")
OPSET, IR = 14, 8


def onnx_run(weights: RunnerWeights) -> Run:
    """Builds a session of onnxruntime for each layer; returns the function that runs them on one sequence.
    They run in float32: onnxruntime has no recurrence in float64 on a CPU.
    """
    sessions = [onnx_session(weights, layer) for layer in range(weights.sizes.layers)]

    def run(x: Array) -> Array:
        """Runs onnxruntime's sessions, one per layer, on one sequence [steps, inputs]; returns the outputs
        [steps, features].
        """
        x = x[:, None].astype(np.float32)  # [steps, batch, features]
        for session in sessions:
            (outputs,) = session.run(None, {"x": x})  # [steps, directions, batch, hidden], of a batch of one
            x = outputs.reshape(len(x), 1, -1)
        return x[:, 0]

    return run


def onnx_session(weights: RunnerWeights, layer: int) -> Any:
    """Builds an onnxruntime session that runs layer number `layer` in float32: a model of one node."""
    runtime: Any = importlib.import_module("onnxruntime")
    onnx: Any = importlib.import_module("onnx")
    helper, number = onnx.helper, onnx.TensorProto.FLOAT
    name_prefix, settings = weights.name_prefix(layer), weights.settings
    arrays = {
        name: weights.arrays[f"{name_prefix}{name}"].astype(np.float32)
        for name in ("W", "R", "B", "P")
        if f"{name_prefix}{name}" in weights.arrays
    }
    functions = [
        settings[f"activations[{index}]"] for index in range(3) if f"activations[{index}]" in settings
    ]
    both = weights.sizes.directions > 1
    node = helper.make_node(
        weights.record.cell.upper(),
        ["x", "W", "R", "B" if "B" in arrays else "", *(("", "", "", "P") if "P" in arrays else ())],
        ["y"],
        hidden_size=weights.sizes.hidden,
        direction="bidirectional" if both else "reverse" if weights.reverse else "forward",
        activations=functions * weights.sizes.directions,
        **({"clip": float(settings["clip"])} if settings["clip"] else {}),
        **{name: value for name, value in settings.items() if name == "linear_before_reset"},
    )
    graph = helper.make_graph(
        [node],
        "one",
        [helper.make_tensor_value_info("x", number, ["steps", "batch", weights.sizes.inputs_of(layer)])],
        [helper.make_tensor_value_info("y", number, None)],
        [onnx.numpy_helper.from_array(array, name) for name, array in arrays.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR)
    return runtime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])


FRAMEWORKS = (
    Framework("torch", tuple(TORCH), lambda: ("torch",), torch_refuses, torch_run),
    Framework("keras", tuple(KERAS), keras_needs, lambda _: None, keras_run),
    Framework("onnxruntime", ONNX, lambda: ("onnxruntime", "onnx"), merge_refusal, onnx_run),
)
