"""A model of Keras as an example: its inputs drawn from their shapes, its weights from their names."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from recording import Recorder, generator

LENGTHS = (12, 7, 5)
WORDS = 11
Make = Callable[[], Any]


@dataclass(frozen=True)
class KerasExample:
    """A model of Keras, and how its inputs are drawn.

    masked: the batch is padded with zeros (`fill` of frames), which the model masks. lengths: the steps of
    the single sequences. others: steps of inputs that have other lengths. statics: whole numbers of a
    sequence. low: the least whole number.
    """

    name: str
    about: str
    make: Make
    masked: bool = False
    lengths: tuple[int, ...] = LENGTHS
    others: dict[str, tuple[int, ...]] = field(default_factory=dict)
    statics: tuple[str, ...] = ()
    fill: float = 0.0


EXAMPLES: dict[str, list[KerasExample]] = {"keras": [], "h5": [], "keras2": []}


def whole(about: str, kind: str = "keras", **options: Any) -> Callable[[Make], Make]:
    """Lists a function that makes a model; the name of the function is the model's."""

    def listed(make: Make) -> Make:
        EXAMPLES[kind].append(KerasExample(make.__name__, about, make, **options))
        return make

    return listed


def draw_weights(model: Any, name: str) -> None:
    """Gives a model weights no two of which are alike; variances and scales are positive."""
    for number, weight in enumerate(model.weights):
        path = getattr(weight, "path", weight.name)
        last = path.rsplit("/", 1)[-1].split(":")[0]
        array = numbers(weight.value if hasattr(weight, "value") and not callable(weight.value) else weight)
        if array.dtype.kind != "f" or "mean_and" in path or last == "count":
            continue
        random = generator(f"{name}/{number}")
        fan = 2.0 if "embedding" in path else max(1, int(np.prod(array.shape[:-1])))
        if last in ("gamma", "scale", "moving_variance", "variance"):
            found = random.uniform(0.5, 1.5, array.shape)
        else:
            found = random.normal(0, 1.2 / np.sqrt(fan) if array.ndim > 1 else 0.2, array.shape)
        weight.assign(found.astype(array.dtype))


def has_steps(tensor: Any, example: KerasExample) -> bool:
    """Tells whether an input has a row for each step: frames and words do, unless the example says not."""
    return tensor.name not in example.statics and (len(tensor.shape) > 2 or "int" in str(tensor.dtype))


def drawn(tensor: Any, example: KerasExample, length: int, rows: int, seed: str) -> np.ndarray:
    """Returns rows of an input: of `length` steps, unless its shape has their number."""
    shape = [rows, *tensor.shape[1:]]
    if has_steps(tensor, example):
        shape[1] = shape[1] or length
    shape = [size or 4 for size in shape]
    random = generator(f"{example.name}/{tensor.name}/{seed}")
    if "int" in str(tensor.dtype):
        return random.integers(1, WORDS, shape).astype(np.int32)
    return random.normal(size=shape).astype(np.float32)


def padded(arrays: list[np.ndarray], fill: float) -> np.ndarray:
    """Returns rows of different lengths as one array."""
    longest = max(array.shape[1] for array in arrays)
    rows = [
        np.pad(
            array,
            [(0, 0), (0, longest - array.shape[1]), *[(0, 0)] * (array.ndim - 2)],
            constant_values=0 if array.dtype.kind == "i" else fill,
        )
        for array in arrays
    ]
    return np.concatenate(rows)


def numbers(tensor: Any) -> np.ndarray:
    """Returns the numbers of a tensor of any backend."""
    return np.asarray(tensor.detach() if hasattr(tensor, "detach") else tensor)


def add(recorder: Recorder, example: KerasExample, suffix: str) -> None:
    """Makes a model, saves it, and records its results."""
    model = example.make()
    draw_weights(model, example.name)
    file = f"{example.name}{suffix}"
    model.save(recorder.folder / file)
    tensors = list(model.inputs)
    fixed = any(tensor.shape[1] for tensor in tensors if has_steps(tensor, example))
    count = 1 if fixed else len(example.lengths)

    def batch(row: int, rows: int, seed: str) -> dict[str, np.ndarray]:
        lengths = {tensor.name: example.others.get(tensor.name, example.lengths) for tensor in tensors}
        return {t.name: drawn(t, example, lengths[t.name][row], rows, seed) for t in tensors}

    batched = [tensor.shape[0] for tensor in tensors if tensor.shape[0]]
    rows = batched[0] if batched else 1
    alone = [batch(row, rows, f"alone/{row}") for row in range(count)]
    steps = [tensor.name for tensor in tensors if has_steps(tensor, example)]
    lengths = None
    if example.masked:
        named = {name: [one[name] for one in alone] for name in alone[0]}
        together = {
            name: padded(arrays, example.fill) if name in steps else np.concatenate(arrays)
            for name, arrays in named.items()
        }
        lengths = {name: [array.shape[1] for array in named[name]] for name in steps}
    else:
        together = batch(0, 1 if batched else 3, "padded")

    def run(inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Runs the model with states of zeros."""
        for layer in model.layers:
            if getattr(layer, "stateful", False):
                layer.reset_states() if hasattr(layer, "reset_states") else layer.reset_state()
        given = [inputs[tensor.name] for tensor in tensors]
        found = model(given if len(given) > 1 else given[0], training=False)
        if isinstance(found, dict):
            return {key: numbers(value) for key, value in found.items()}
        several = list(found) if isinstance(found, (list, tuple)) else [found]
        names = list(getattr(model, "output_names", [model.layers[-1].name]))
        if len(set(names)) < len(names):
            names = [f"{number}" for number in range(len(several))]
        return {key: numbers(value) for key, value in zip(names, several, strict=True)}

    width = max(int(np.prod(weight.shape[:-1])) for weight in model.weights if len(weight.shape) > 1)
    recorder.add(example.name, file, example.about, run, together, alone, lengths, steps, width)
