"""Whether a file that was written computes what the modules compute that it was made of.

A file of arrays alone says nothing of how its modules are joined: each is compared by itself. A file that is
a model is run as a whole, by stepnet's own reading of it and by its own runtime where that is installed.
"""

import importlib
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from stepnet.errors import LayoutError
from stepnet.files.account import check_row
from stepnet.files.formats import kind, read
from stepnet.files.model import Array, Module, bare, stacked
from stepnet.layout.frameworks import NOT_INSTALLED
from stepnet.layout.verify import (
    NOT_FINITE,
    Own,
    Verdict,
    Weights,
    distance,
    inputs,
    outputs_of,
    own,
    random_sequences,
    rounding,
    stored,
)
from stepnet.rnn.compose import Layer, Stack


def weights(module: Module) -> Weights:
    """A module as a side to verify."""
    merge = module.merge or "concat"  # either side's, where nobody says: each module is compared by itself
    return Weights(module.arrays, module.layout, module.sizes, module.semantics, module.reverse, merge)


def in_a_row(modules: Sequence[Module]) -> Layer:
    """Modules as layers in float64, each over the one before."""
    layers = [weights(module).layers(np.float64) for module in modules]
    return layers[0] if len(layers) == 1 else Stack(layers)


def verify_file(
    made_of: Sequence[Module], made: tuple[Module, ...], output: str | Path, seed: int = 0
) -> Verdict:
    """The largest difference of the outputs of modules in a row, and of the file that was written of them.

    made: the modules as they were written.
    """
    written = tuple(again(output, made))
    check_row(written, output, assumed=True)
    here, there = in_a_row(made_of), in_a_row(written)
    sequences = random_sequences(inputs(here), seed)
    right, found = outputs_of(here, sequences), outputs_of(there, sequences)
    largest = float(np.abs(right.values).max(initial=0))
    sides = [weights(module) for module in (*made_of, *written)]
    lone = there(sequences, last_only=True, engine="interpret")[0] if written[-1].last_only else None
    given = found.to_list() if lone is None else list(lone)
    asked = [by_its_runtime(Path(output), written, sequences.to_list(), given, sides)]
    if len(made_of) == 1:
        asked.insert(0, own(sides[0], sequences, right))
    return Verdict(
        distance(right.values, found.values),
        largest,
        len(sequences),
        len(sequences.values),
        max(1.0, largest) * sum(map(stored, sides)),
        tuple(answer for answer in asked if answer is not None),
    )


def again(output: str | Path, made: tuple[Module, ...]) -> list[Module]:
    """The modules that were written, as the file has them; what it does not tell is as it was written."""
    form, several = kind(Path(output)), len(made) > 1
    by_name = {bare(form.front(old)): old.layout for old in made} if form.of_arrays and several else None
    written = {old.layout for old in made}
    found = tuple(
        replace(new, layouts=tuple(one for one in new.layouts if one in written) or new.layouts)
        for new in read(output, None if several else made[0].layout, by_name).modules
    )
    names: list[str] = form.code.names(made) if hasattr(form.code, "names") else []
    if {*names} == {new.name for new in found}:  # in the order of the model, which not every file has
        found = tuple(sorted(found, key=lambda new: names.index(new.name)))
    told = form.tells(Path(output))
    if len(found) != len(made):
        merges = {old.merge for old in made}
        lone = merges.pop() if len(merges) == 1 else None
        found = stacked(tuple(replace(new, merge=new.merge or lone) for new in found), assumed=True)
    if len(found) != len(made):
        raise LayoutError(f"{output}: {len(made)} modules were written, and {len(found)} are found in it")
    return [
        replace(
            new,
            sizes={**old.sizes, **new.sizes},
            semantics={**old.semantics, **new.semantics},
            merge=new.merge if told and new.merge is not None else old.merge,
            **({} if told else {"reverse": old.reverse}),
        )
        for old, new in zip(made, found, strict=True)
    ]


# ---- the runtimes of model files


@dataclass(frozen=True)
class Runtime:
    """What runs a kind of file: the module it takes, the ending of the files, and how a file is loaded.

    load: gives what runs one sequence [steps, inputs].
    """

    module: str
    ending: str
    load: Callable[[Path], Callable[[Array], Array]]


def in_onnxruntime(path: Path) -> Callable[[Array], Array]:
    """An ONNX file as onnxruntime runs it."""
    onnxruntime: Any = importlib.import_module("onnxruntime")
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    name, kind_of = session.get_inputs()[0].name, session.get_inputs()[0].type
    dtype = {"tensor(float)": np.float32, "tensor(double)": np.float64}[kind_of]
    return lambda x: session.run(None, {name: x[None].astype(dtype)})[0][0]


def in_keras(path: Path) -> Callable[[Array], Array]:
    """A .keras file as Keras runs it."""
    keras: Any = importlib.import_module("keras")
    model = keras.saving.load_model(path, compile=False, safe_mode=True)

    def run(x: Array) -> Array:
        given = model(x[None].astype(model.dtype))
        # Last states may be behind the outputs.
        outputs: Any = given[0] if type(given) in (list, tuple) else given
        return np.asarray(keras.ops.convert_to_numpy(outputs))[0]

    return run


RUNTIMES = (Runtime("onnxruntime", ".onnx", in_onnxruntime), Runtime("keras", ".keras", in_keras))


def by_its_runtime(
    path: Path,
    written: Sequence[Module],
    sequences: Sequence[Array],
    outputs: Sequence[Array],
    sides: Sequence[Weights],
) -> Own | None:
    """How far the outputs of a file are from what its runtime gives; None where it has none.

    outputs: of each sequence those of all steps, or the last one where the file gives no others.
    """
    runtime = next((one for one in RUNTIMES if path.name.lower().endswith(one.ending)), None)
    if runtime is None:
        return None
    title = " + ".join(dict.fromkeys(module.layout for module in written))
    if find_spec(runtime.module) is None:
        return Own(title, runtime.module, reason=NOT_INSTALLED)
    if not all(np.isfinite(y).all() for y in outputs):
        return Own(title, runtime.module, reason=NOT_FINITE)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what would be faster there is not what is asked
        try:
            run = runtime.load(path)
        except (ImportError, ValueError) as error:  # another version than what is known here
            return Own(title, runtime.module, reason=f"{type(error).__name__}: {error}")
        order = slice(None, None, -1 if written[-1].flipped else 1)
        pairs = zip(sequences, outputs, strict=True)
        given = [(run(x), y[order]) for x, y in pairs if len(x)]
    dtype = given[0][0].dtype
    largest = max(1.0, *(float(np.abs(y).max(initial=0)) for y in outputs))
    return Own(
        title,
        runtime.module,
        importlib.import_module(runtime.module).__version__,
        max(distance(y, x.astype(np.float64)) for x, y in given),
        largest * 2 * sum(rounding(dtype, side.given().sizes) for side in sides),
        dtype.name,
    )
