"""The check that a written file computes the same function as the modules it was written from.

A file of arrays does not specify how its modules are connected, so each module is compared separately. A
model is run as a whole: by stepnet, which reads the file again, and by the file's own runtime if it is
installed.
"""

import importlib
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from stepnet.compiler.values.records import dataclass
from stepnet.errors import LayoutError, StepnetError
from stepnet.layout.files.account import check_stack
from stepnet.layout.files.formats import kind, read
from stepnet.layout.files.model import Array, Module, bare
from stepnet.layout.files.stacks import stacked
from stepnet.layout.frameworks import keras_needs, missing
from stepnet.layout.verify import (
    NOT_FINITE,
    FrameworkResult,
    Verdict,
    Weights,
    conversion_tolerance,
    distance,
    framework_result,
    inputs,
    largest_of,
    outputs_of,
    random_sequences,
    rounding,
    unverified,
)
from stepnet.model.compose import Layer, Stack


def weights(module: Module) -> Weights:
    """Returns a module's arrays, layout and settings as one of the two sides that `verify` compares."""
    merge = module.merge or "concat"  # if it is unknown, both sides use the same
    return Weights(module.arrays, module.layout, module.sizes, module.semantics, module.reverse, merge)


def in_a_row(modules: Sequence[Module]) -> Layer:
    """Builds one stack of runnable layers from modules (recurrent layers), in float64, to compare its outputs
    with another's; each layer takes the outputs of the layer before it.
    """
    layers = [weights(module).layers(np.float64) for module in modules]
    return layers[0] if len(layers) == 1 else Stack(layers)


def verify_file(
    originals: Sequence[Module], written_modules: tuple[Module, ...], output: str | Path
) -> Verdict:
    """Measures the distance of a written model's outputs from the outputs of the original modules (recurrent
    layers), on random sequences; also runs the file in its own runtime, if that is installed.

    originals: the original modules, in order. written_modules: the converted modules in the file `output`.
    """
    written = tuple(read_back(output, written_modules))
    check_stack(written, output, assumed=True)
    original, copy = in_a_row(originals), in_a_row(written)
    sequences = random_sequences(inputs(original), 0)
    expected, outputs = outputs_of(original, sequences), outputs_of(copy, sequences)
    largest = largest_of(expected.values)
    module_weights = [weights(module) for module in (*originals, *written)]
    # A reader may widen what it reads: float16 of a Keras file becomes float32.
    by_conversion = sum(conversion_tolerance(weights(module)) for module in (*originals, *written_modules))
    last_outputs = copy(sequences, last_only=True, engine="interpret")[0] if written[-1].last_only else None
    returned = outputs.to_list() if last_outputs is None else list(last_outputs)
    comparisons = [
        compared_with_runtime(Path(output), written, sequences.to_list(), returned, module_weights)
    ]
    if len(originals) == 1:
        comparisons.insert(0, framework_result(module_weights[0], sequences, expected))
    own_results = tuple(result for result in comparisons if result is not None)
    failed = [
        f"{result.framework} does not load {output}: {result.error}" for result in own_results if result.error
    ]
    return Verdict(
        distance(expected.values, outputs.values),
        largest,
        len(sequences),
        len(sequences.values),
        largest * max(by_conversion, sum(map(conversion_tolerance, module_weights))),
        own_results,
        "; ".join(failed) or unverified(expected.values),
    )


def read_back(output: str | Path, originals: tuple[Module, ...]) -> list[Module]:
    """Reads the modules (recurrent layers) of a newly written file, to compare them with `originals`, the
    modules that were written; returns them in the order of these. Settings and sizes that the file does not
    have are taken from `originals`. Raises `LayoutError` if there are more or fewer.
    """
    file_format, several = kind(Path(output)), len(originals) > 1
    by_name = (
        {bare(file_format.front(old)): old.layout for old in originals}
        if file_format.of_arrays and several
        else None
    )
    written = {old.layout for old in originals}
    modules = tuple(
        replace(new, layouts=tuple(name for name in new.layouts if name in written) or new.layouts)
        for new in read(output, None if several else originals[0].layout, by_name).modules
    )
    names: list[str] = file_format.code.names(originals) if hasattr(file_format.code, "names") else []
    if {*names} == {new.name for new in modules}:  # sorted in the model's order, which not every file keeps
        modules = tuple(sorted(modules, key=lambda new: names.index(new.name)))
    is_model = file_format.is_model(Path(output))
    if len(modules) != len(originals):
        merges = {old.merge for old in originals}
        lone = merges.pop() if len(merges) == 1 else None
        modules = stacked(tuple(replace(new, merge=new.merge or lone) for new in modules), assumed=True)
    if len(modules) != len(originals):
        raise LayoutError(
            f"{output}: {len(originals)} modules were written, and {len(modules)} were read back"
        )
    return [
        replace(
            new,
            sizes={**old.sizes, **new.sizes},
            semantics={**old.semantics, **new.semantics},
            merge=new.merge if is_model and new.merge is not None else old.merge,
            **({} if is_model else {"reverse": old.reverse}),
        )
        for old, new in zip(originals, modules, strict=True)
    ]


# ---- the runtimes of model files


@dataclass(frozen=True)
class Runtime:
    """A runtime for files of one kind.

    module: the Python module of the runtime.
    ending: the ending of the files.
    load: loads a path; returns the function that runs one sequence [steps, inputs].
    """

    module: str
    ending: str
    load: Callable[[Path], Callable[[Array], Array]]


def in_onnxruntime(path: Path) -> Callable[[Array], Array]:
    """Loads an ONNX file in onnxruntime; returns the function that runs one sequence [steps, inputs]."""
    onnxruntime: Any = importlib.import_module("onnxruntime")
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    name, kind_of = session.get_inputs()[0].name, session.get_inputs()[0].type
    dtype = {"tensor(float)": np.float32, "tensor(double)": np.float64}[kind_of]
    return lambda x: session.run(None, {name: x[None].astype(dtype)})[0][0]


def in_keras(path: Path) -> Callable[[Array], Array]:
    """Loads a .keras file in Keras; returns the function from a sequence [steps, inputs] to outputs."""
    keras: Any = importlib.import_module("keras")
    model = keras.saving.load_model(path, compile=False, safe_mode=True)

    def run(x: Array) -> Array:
        """Runs the Keras model on one sequence [steps, inputs], and returns its outputs."""
        results = model(x[None].astype(model.dtype))
        outputs: Any = results[0] if type(results) in (list, tuple) else results  # final states may follow
        return np.asarray(keras.ops.convert_to_numpy(outputs))[0]

    return run


RUNTIMES = (Runtime("onnxruntime", ".onnx", in_onnxruntime), Runtime("keras", ".keras", in_keras))


def compared_with_runtime(
    path: Path,
    written: Sequence[Module],
    sequences: Sequence[Array],
    outputs: Sequence[Array],
    module_weights: Sequence[Weights],
) -> FrameworkResult | None:
    """Compares the outputs of stepnet for a new model file with those of the runtime of the file's format,
    such as onnxruntime; None if the format has none.

    path: the file. written: the modules (recurrent layers) in it. sequences: the inputs. outputs: stepnet's
    outputs for each sequence, at all steps, or only the last if the file returns that. module_weights: the
    weights of the original and of the written modules, for the tolerance.
    """
    runtime = next((row for row in RUNTIMES if path.name.lower().endswith(row.ending)), None)
    if runtime is None:
        return None
    title = " + ".join(dict.fromkeys(module.layout for module in written))
    reason = missing(keras_needs() if runtime.module == "keras" else (runtime.module,))
    if reason is not None:
        return FrameworkResult(title, runtime.module, reason=reason)
    if not all(np.isfinite(y).all() for y in outputs):
        return FrameworkResult(title, runtime.module, reason=NOT_FINITE)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # hints about speed and the like
        order = slice(None, None, -1 if written[-1].flipped else 1)
        pairs = zip(sequences, outputs, strict=True)
        try:
            run = runtime.load(path)
            compared = [(run(x), y[order]) for x, y in pairs if len(x)]
        except StepnetError:
            raise
        except (ImportError, ValueError, NotImplementedError) as error:  # PyTorch has not all for float16
            return FrameworkResult(title, runtime.module, error=f"{type(error).__name__}: {error}")
    dtype = compared[0][0].dtype
    largest = max(1.0, *(float(np.abs(y).max(initial=0)) for y in outputs))
    return FrameworkResult(
        title,
        runtime.module,
        importlib.import_module(runtime.module).__version__,
        max(distance(y, x.astype(np.float64)) for x, y in compared),
        largest * 2 * sum(rounding(dtype, side.runner_weights().sizes) for side in module_weights),
        dtype.name,
    )
