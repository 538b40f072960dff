"""What frameworks themselves give for weights of their layouts, where they are installed.

A row of `FRAMEWORKS` says which layouts a framework runs, what has to be installed for it, what it has no
way to run, and how it is made to. A framework is imported only when it is asked.
"""

import importlib
import json
import os
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from stepnet.layout.record import Record
from stepnet.layout.semantics import Semantics
from stepnet.layout.sizes import Sizes

Array = np.ndarray[Any, np.dtype[Any]]
Run = Callable[[Array], Array]  # [steps, inputs] -> [steps, outputs]

NOT_INSTALLED = "it is not installed"


@dataclass(frozen=True)
class Given:
    """Weights as a framework is given them: all that is known of them, and their arrays in float64."""

    record: Record
    arrays: Mapping[str, Array]
    sizes: Sizes
    semantics: Semantics
    reverse: bool = False
    merge: str = "concat"

    @property
    def settings(self) -> dict[str, Any]:
        """How the framework is set, by its own names and values."""
        return {
            setting.name: value if setting.values is None else setting.values[value]
            for field, setting in self.record.settings().items()
            for value in [getattr(self.semantics, field)]
        }

    def contradiction(self) -> str | None:
        """Why the framework cannot be set so: one of its settings would have two values."""
        settings = self.settings
        for field, setting in self.record.settings().items():
            value = getattr(self.semantics, field)
            theirs = value if setting.values is None else setting.values[value]
            if theirs != settings[setting.name]:
                return f"it has one {setting.name} for {theirs} and {settings[setting.name]}"
        return None

    def front(self, layer: int, direction: int | None = None) -> str:
        """What is before the names of a layer's arrays, or of those of one of its directions."""
        way = "" if direction is None or self.sizes.directions == 1 else self.record.directions[direction]
        return f"{layer}/{way}" if self.sizes.layers > 1 else way


@dataclass(frozen=True)
class Answer:
    """What a framework gave for each sequence, or the reason why it was not asked."""

    framework: str
    version: str | None = None
    outputs: tuple[Array, ...] | None = None
    reason: str | None = None


@dataclass(frozen=True)
class Framework:
    """A framework that can be asked.

    needs: the modules it takes, itself first, known only now, as Keras has one of several under it. refuse:
    why it cannot run some weights, or None. prepare: weights made ready to be run.
    """

    name: str
    layouts: tuple[str, ...]
    needs: Callable[[], tuple[str, ...]]
    refuse: Callable[[Given], str | None]
    prepare: Callable[[Given], Run]

    def missing(self) -> str | None:
        """What is not installed, or None. Nothing is imported."""
        lacking = [module for module in self.needs() if find_spec(module) is None]
        if not lacking:
            return None
        return NOT_INSTALLED if lacking[0] == self.name else f"it needs {lacking[0]}, which is not installed"


def answer(given: Given, sequences: Iterable[Array]) -> Answer | None:
    """What the framework itself gives for sequences [steps, inputs]; None where there is none to ask."""
    row = next((one for one in FRAMEWORKS if given.record.name in one.layouts), None)
    if row is None:
        return None
    reason = row.missing() or given.contradiction() or row.refuse(given)
    if reason is not None:
        return Answer(row.name, reason=reason)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what would be faster there is not what is asked
        try:
            version = importlib.import_module(row.name).__version__
            run = row.prepare(given)
        except (ImportError, ValueError) as error:  # another version than what is known here
            return Answer(row.name, reason=f"{type(error).__name__}: {error}")
        return Answer(row.name, version, tuple(run(sequence) for sequence in sequences))


def side_by_side(given: Given) -> str | None:
    """Why a framework cannot merge two directions that does nothing but put them side by side."""
    if given.sizes.directions == 1 or given.merge == "concat":
        return None
    return f"it puts the outputs of both directions side by side, and here merge is {given.merge!r}"


# ---- PyTorch -----------------------------------------------------------------------------------------------

TORCH = {"torch.rnn": "RNN", "torch.gru": "GRU", "torch.lstm": "LSTM", "torch.lstm_projection": "LSTM"}


def torch_refuses(given: Given) -> str | None:
    """Why torch.nn has no such module."""
    sizes = given.sizes
    if given.reverse:
        return "it has no layer that runs backward alone"
    if sizes.projected is not None and sizes.projected >= sizes.hidden:
        return f"it projects to less than {sizes.hidden} hidden, and here to {sizes.projected}"
    return side_by_side(given)


def torch_run(given: Given) -> Run:
    """A module of torch.nn in float64."""
    torch: Any = importlib.import_module("torch")
    sizes = given.sizes
    module = getattr(torch.nn, TORCH[given.record.name])(
        sizes.inputs,
        sizes.hidden,
        num_layers=sizes.layers,
        bidirectional=sizes.directions > 1,
        bias="bias_ih_l0" in given.arrays,
        dtype=torch.float64,
        **({"proj_size": sizes.projected} if sizes.projected else {}),
        **given.settings,
    )
    module.load_state_dict({name: torch.from_numpy(array) for name, array in given.arrays.items()})

    def run(x: Array) -> Array:
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
    """Keras and its backend: that of KERAS_BACKEND, else of its file of settings, else TensorFlow."""
    if "keras" in sys.modules:
        return ("keras",)
    backend: Any = os.environ.get("KERAS_BACKEND")
    settings = Path(os.environ.get("KERAS_HOME") or "~/.keras").expanduser() / "keras.json"
    if not backend and settings.exists():
        backend = json.loads(settings.read_text(encoding="utf-8")).get("backend")
    return "keras", backend or "tensorflow"


def keras_run(given: Given) -> Run:
    """Layers of Keras, one after another, in what Keras makes of float64: whatever the dtype of a layer, its
    products are in float32.
    """
    keras: Any = importlib.import_module("keras")
    layers = [keras_layer(keras, given, layer) for layer in range(given.sizes.layers)]

    def run(x: Array) -> Array:
        for layer in layers:
            x = np.asarray(keras.ops.convert_to_numpy(layer(x[None])))[0]
            x = (
                x[::-1].copy() if given.reverse else x
            )  # a layer that goes backwards gives its last step first
        return x

    return run


def keras_layer(keras: Any, given: Given, layer: int) -> Any:
    """One layer, of one direction or both, with its weights."""
    both, dtype = given.sizes.directions > 1, keras.backend.result_type("float64", "float64")
    made = getattr(keras.layers, KERAS[given.record.name])(
        given.sizes.hidden,
        return_sequences=True,
        go_backwards=given.reverse,
        use_bias=f"{given.front(layer, 0)}bias" in given.arrays,
        dtype=dtype,
        **({"reset_after": given.semantics.reset == "after"} if given.record.cell == "gru" else {}),
        **given.settings,
    )
    if both:
        made = keras.layers.Bidirectional(made, merge_mode=MERGES[given.merge], dtype=dtype)
    made.build((None, None, given.sizes.inputs_of(layer)))
    for direction, one in enumerate([made.forward_layer, made.backward_layer] if both else [made]):
        front = given.front(layer, direction)
        names = [f"{front}{name}" for name in ("kernel", "recurrent_kernel", "bias")]
        one.set_weights([given.arrays[name] for name in names if name in given.arrays])
    return made


# ---- ONNX --------------------------------------------------------------------------------------------------

ONNX = ("onnx.rnn", "onnx.gru", "onnx.lstm")
OPSET, IR = 14, 8


def onnx_run(given: Given) -> Run:
    """A session for each layer, in float32: onnxruntime has no recurrence in float64 on a CPU."""
    sessions = [onnx_session(given, layer) for layer in range(given.sizes.layers)]

    def run(x: Array) -> Array:
        x = x[:, None].astype(np.float32)  # [steps, batch, features]
        for session in sessions:
            (found,) = session.run(None, {"x": x})  # [steps, directions, batch, hidden], of a batch of one
            x = found.reshape(len(x), 1, -1)
        return x[:, 0]

    return run


def onnx_session(given: Given, layer: int) -> Any:
    """A session of a model that is one node."""
    runtime: Any = importlib.import_module("onnxruntime")
    onnx: Any = importlib.import_module("onnx")
    helper, number = onnx.helper, onnx.TensorProto.FLOAT
    front, settings = given.front(layer), given.settings
    arrays = {
        name: given.arrays[f"{front}{name}"].astype(np.float32)
        for name in ("W", "R", "B", "P")
        if f"{front}{name}" in given.arrays
    }
    functions = [
        settings[f"activations[{place}]"] for place in range(3) if f"activations[{place}]" in settings
    ]
    both = given.sizes.directions > 1
    node = helper.make_node(
        given.record.cell.upper(),
        ["x", "W", "R", "B" if "B" in arrays else "", *(("", "", "", "P") if "P" in arrays else ())],
        ["y"],
        hidden_size=given.sizes.hidden,
        direction="bidirectional" if both else "reverse" if given.reverse else "forward",
        activations=functions * given.sizes.directions,
        **({"clip": float(settings["clip"])} if settings["clip"] else {}),
        **{name: value for name, value in settings.items() if name == "linear_before_reset"},
    )
    graph = helper.make_graph(
        [node],
        "one",
        [helper.make_tensor_value_info("x", number, ["steps", "batch", given.sizes.inputs_of(layer)])],
        [helper.make_tensor_value_info("y", number, None)],
        [onnx.numpy_helper.from_array(array, name) for name, array in arrays.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR)
    return runtime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])


FRAMEWORKS = (
    Framework("torch", tuple(TORCH), lambda: ("torch",), torch_refuses, torch_run),
    Framework("keras", tuple(KERAS), keras_needs, lambda _: None, keras_run),
    Framework("onnxruntime", ONNX, lambda: ("onnxruntime", "onnx"), side_by_side, onnx_run),
)
