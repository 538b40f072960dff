"""Loads a saved program of PaddlePaddle as a graph."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path

from stepnet.compiler.values.arguments import is_any, stated_axes
from stepnet.errors import ModelError
from stepnet.importers.axes import FEATURE
from stepnet.layout.files.paddle import parameters, pir, protobuf
from stepnet.layout.files.paddle.program import Array, PaddleProgram, Variable
from stepnet.layout.files.paths import existing, reading
from stepnet.layout.files.store import Store
from stepnet.model.graph import axis_choice
from stepnet.model.graph.array_model import ModelInput
from stepnet.model.graph.graph import Graph
from stepnet.paddle.constants import dtype
from stepnet.paddle.model import PaddleModel, needed
from stepnet.paddle.names import PADDLE

READERS = {".json": pir.read, ".pdmodel": protobuf.read}
"""The reader of a program, by the ending of its file, in the order of preference. Paddle 3 writes the first.
"""
PARAMETERS = ".pdiparams"


def load(path: str | Path, *, axes: Mapping[str, str] | None = None, steps: str | None = None) -> Graph:
    """Loads a program that `paddle.static.save_inference_model` or `paddle.jit.save` saved, as a `Graph`.

    The graph runs over sequences without padding. No code in the file runs, and Paddle is not needed.

    Args:
        path: The program, m.json or m.pdmodel, or the path that Paddle was given, m. Its parameters,
            m.pdiparams, lie beside it.
        axes: The meaning of the first axes of inputs, by name, where the operators that read an input do not
            determine it: "NT" for [batch, time, ...], "TN" for [time, batch, ...], "N" for one value per
            sequence. Further axes, and axes called "_", are features.
        steps: "any" to state that no number in the program depends on the number of steps that it fixes; see
            `stepnet.load`.

    Returns:
        The graph. A single input of sequences is passed as it is, and several as a dict by name; inputs
        without steps are `statics`. The input that a recurrence reads as `sequence_length` is `lengths=` of
        a call. Inputs with a LoD are sequences too. Outputs are those of the program, by name if there are
        several.

    Raises:
        FileError: For files that are damaged or not a program of Paddle's.
        ModelError: For an operator that is not supported, with its position, and for one that mixes
            sequences.
        InputError: For axes that do not fit, and sequences of another length than the number of steps that
            the program fixes, if a number in it may depend on that.

    >>> load("tagger")
    Traceback (most recent call last):
    stepnet.errors.FileError: tagger.json: there is no such file
    """
    source = program_path(Path(path))
    program, arrays = read(source)
    check_supported(program)
    stated, any_steps = stated_axes(axes), is_any(steps)
    axis_choice.check_names(stated, [variable.name for variable in program.inputs])

    def build(chosen: Sequence[str], apart: axis_choice.Apart) -> Graph:
        """Makes the graph for one choice of the inputs' axes, such as "NT_"; an error if they do not fit."""
        inputs = axis_choice.agreed([*map(model_input, program.inputs, chosen)], apart)
        return axis_choice.graph_of(PaddleModel(program.path, inputs, program, arrays, any_steps=any_steps))

    return axis_choice.first_fitting(program.path, axes_choices(program, stated), build)


def program_path(path: Path) -> Path:
    """Returns the path of a program's file. path: the file, or Paddle's path without its ending, to which the
    first ending of `READERS` is added whose file exists; `FileError` if there is none.
    """
    if path.suffix in READERS:
        return existing(path)
    candidates = [path.with_name(path.name + ending) for ending in READERS]
    return next((candidate for candidate in candidates if candidate.exists()), None) or existing(
        path.with_name(path.name + ".json")
    )


def read(source: Path) -> tuple[PaddleProgram, dict[str, Array]]:
    """Reads Paddle's program in the file `source`, and its parameters by name from the file beside it;
    returns (program, parameters).
    """
    with reading(source):
        data = source.read_bytes()
        program = READERS[source.suffix](data, str(source), Store(None, len(data)))
    if not program.parameters:
        return program, {}
    beside = existing(source.with_suffix(PARAMETERS))
    with reading(beside):
        data = beside.read_bytes()
        return program, parameters.read(data, program.parameters, Store(None, len(data)))


def check_supported(program: PaddleProgram) -> None:
    """Raises `ModelError` if the outputs depend on operators that stepnet does not support.

    The message names the operators and their positions.
    """
    operations = needed(program)
    missing = [operation for operation in operations if operation.type not in PADDLE]
    if missing:
        kinds = ", ".join(dict.fromkeys(operation.type for operation in missing))
        more = f" and {len(missing) - 5} more" if len(missing) > 5 else ""
        locations = ", ".join(operation.location for operation in missing[:5]) + more
        raise ModelError(
            f"{program.path}: {kinds} not supported: {locations}; "
            f"its {len(operations) - len(missing)} other operations are"
        )


def axes_choices(program: PaddleProgram, axes: Mapping[str, str]) -> Iterator[tuple[str, ...]]:
    """Yields all combinations of axes that a program's inputs may have, the most likely first, to be tried.

    axes: the axes that the user stated, by the name of the input.
    """
    lengths = {
        name for operation in program.operations for name in operation.inputs.get("SequenceLength", ())
    }
    return product(
        *(
            [axes[variable.name]]
            if variable.name in axes
            else ["lengths"]
            if variable.name in lengths
            else possible(variable, program)
            for variable in program.inputs
        )
    )


def possible(variable: Variable, program: PaddleProgram) -> list[str]:
    """Lists the axes that an input of a program may have, as letters such as "NT_", the most likely first;
    the steps of an input with a LoD (Paddle's offsets of sequences) lie end to end ("S_").

    Raises `ModelError` for sequences of sequences.
    """
    if variable.levels > 1:
        raise ModelError(
            f"{program.path}: the input {variable.name!r} has {variable.levels} levels of sequences (LoD); "
            "one is supported"
        )
    rank = len(variable.sizes)
    return ["S" + FEATURE * (rank - 1)] if variable.levels else axis_choice.axes_of_sizes(variable.sizes)


def model_input(variable: Variable, axes: str) -> ModelInput:
    """Makes an input of a model from the declaration in Paddle's program, `variable`; raises `InputError` if
    the chosen axes do not fit its shape. axes: such as "NT_", or "lengths".
    """
    name = str(dtype(variable.dtype.name))
    if axes == "lengths":
        return ModelInput(variable.name, axes, (), name)
    return axis_choice.with_axes(variable.name, variable.sizes, name, axes)
