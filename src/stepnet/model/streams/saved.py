"""Saving and loading of a stream's rows, in .safetensors files.

    memory.h                  [rows, features...]   the memory of each row; of a stack: layer.0.memory.h
    first.h                   [rows, features...]   the memory that `reset` restores, unless zeros
    statics.keys              [rows, features...]   of sequences: statics.keys.values, statics.keys.offsets
    begun                     [rows]                the number of steps that each row has taken
    __metadata__              the recurrences of the rows: digests of the steps and of the parameters, and the
                              features and dtypes of inputs and statics

A file is not trusted. The step is traced anew for the inputs that the file names; its digest, and the digest
of the parameters, must equal the digests in the file. Then the arrays must be exactly those of this step,
with their shapes and dtypes.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, cast

import numpy as np

from stepnet.compiler.net.digest import digest
from stepnet.compiler.net.types import Literal
from stepnet.compiler.trace.spec import Spec
from stepnet.compiler.values.records import dataclass
from stepnet.compiler.values.structure import DEEPEST, leaves, named_leaves, skeleton
from stepnet.compiler.values.version import __version__
from stepnet.errors import FileError, StepnetError, named
from stepnet.layout.files import jsons, safetensors
from stepnet.layout.files.store import Store
from stepnet.model.initial import MOST_BEGUN
from stepnet.model.streams.beginning import LayerStep, New, kind_for
from stepnet.model.streams.layers import Names, Stepped
from stepnet.model.streams.memories import has_only_zeros
from stepnet.model.streams.moment import Moment
from stepnet.model.streams.prepared import StepKind
from stepnet.model.streams.statics import kinds
from stepnet.ragged import Ragged

Array = np.ndarray
FORMAT, VERSION = "stepnet.stream", 1
BEGUN, LAYERS = "begun", "layers"
SPEC = {"shape", "dtype", "levels", "axis"}
FROM_STEPS = TypeError, ValueError, LookupError, AttributeError, ArithmeticError, AssertionError
LayerSteps = Sequence[tuple[Names, LayerStep]]


@dataclass(frozen=True)
class SavedRows:
    """Rows of a stream that were read from a file.

    kinds: the step of each layer.
    new: the memories and statics of the rows, for each layer.
    begun: the number of steps that each row has taken.
    """

    kinds: list[StepKind]
    new: list[New]
    begun: Array


# ---- writing -----------------------------------------------------------------------------------------------


def write(
    path: str | Path, recurrences: Sequence[Stepped], steps: LayerSteps, moment: Moment, force: bool
) -> None:
    """Writes the rows of a stream to a file; raises `FileError` if that is not possible.

    path: the file. recurrences, steps: the recurrence of each layer, and (the names of the layer, its
    prepared step). moment: the rows to write, with the positions of their memories in the arrays. force:
    whether to replace an existing file.
    """
    arrays: dict[str, Array] = {BEGUN: moment.begun}
    layers: list[dict[str, Any]] = []
    names = names_of([(own, step.kind) for own, step in steps])
    for rnn, (_, step), layer in zip(recurrences, steps, names, strict=True):
        values = [*step.memories.of(moment), *parts(step.statics_of(moment.slots))]
        arrays |= zip([*layer.memory, *layer.statics], values, strict=True)
        first = step.memories.first_of(moment.slots)
        arrays |= {name: own for name, own in zip(layer.first, first, strict=True) if not has_only_zeros(own)}
        layers.append(
            {
                "step": step_digest(step.kind),
                "parameters": parameters_digest(rnn, step.kind),
                "inputs": to_json(step.kind.inputs),
                "statics": to_json(step.kind.statics),
            }
        )
    described = {"format": FORMAT, "version": str(VERSION), "stepnet": __version__}
    safetensors.write(path, arrays, force, {**described, LAYERS: json.dumps({LAYERS: layers})})


def parts(statics: Sequence[Any]) -> Iterator[Array]:
    """Yields the arrays with which statics (values that each sequence has once) of a stream are saved, in the
    order of their names: a Ragged has two, its values and its offsets.
    """
    for value in statics:
        yield from (value.values, value.offsets[0]) if isinstance(value, Ragged) else (value,)


@dataclass(frozen=True)
class LayerNames:
    """The names in a saved stream of a layer's arrays: present memories, memories for `reset`, statics."""

    memory: list[str]
    first: list[str]
    statics: list[str]


def names_of(kinds: Sequence[tuple[Names, StepKind]]) -> list[LayerNames]:
    """Returns the names of all arrays in a saved stream, layer by layer, such as "layer.0.memory.h".

    These are the names of the memories, of the memories for `reset`, and of the statics. A repeated name gets
    a number.

    kinds: pairs of the names of a layer and its step.
    """
    used_names = {BEGUN}

    def unique(name: str) -> str:
        """Returns a name for an array of a saved stream, with a number if it is taken, and reserves it."""
        own, number = name, 0
        while own in used_names:
            number += 1
            own = f"{name}#{number}"
        used_names.add(own)
        return own

    def of(front: list[str], specs: Any) -> Iterator[str]:
        """Yields names for the arrays of a structure, each unused so far: the words in `front` and the
        array's name in the structure, joined by dots.
        """
        for name, spec in named_leaves(specs):
            whole = ".".join([*front, *([name] if name else [])])
            ends = (".values", ".offsets") if spec.axis else ("",)
            yield from (unique(whole + end) for end in ends)

    names_by_layer: list[LayerNames] = []
    for names, kind in kinds:
        front = [name.replace(" ", ".") for name in names]
        memory, first = (list(of([*front, what], kind.traced.memory)) for what in ("memory", "first"))
        names_by_layer.append(LayerNames(memory, first, list(of([*front, "statics"], kind.statics))))
    return names_by_layer


def step_digest(kind: StepKind) -> str:
    """Returns a digest of a traced step without its parameter values, to check a saved stream by."""
    structures = [skeleton(part) for part in (kind.inputs, kind.traced.memory, kind.statics)]
    return digest(kind.traced.body, *structures, kind.traced.precision)


def parameters_digest(rnn: Stepped, kind: StepKind) -> str:
    """Returns a digest of the bits of a layer's parameters and captured arrays, to check a saved stream by.
    rnn, kind: the recurrence of the layer, and its traced step.
    """
    params = rnn.program_of(kind.inputs, kind.statics).params
    return digest(skeleton(rnn.params), *map(Literal, params))


def to_json(structure: Any) -> Any:
    """Converts a structure of `Spec`s to JSON values, to save it in a file.

    A dict becomes {"dict": [[key, value], ...]}, a tuple or list {"tuple": [...]}, None stays. The result is
    False for a structure with namedtuples or keys that are no text.
    """
    if structure is None:
        return None
    if isinstance(structure, Spec):
        own = {"shape": list(structure.shape), "dtype": structure.dtype}
        return own | {"levels": structure.levels, "axis": structure.axis}
    if isinstance(structure, Mapping):
        pairs = list(cast("Mapping[Any, Any]", structure).items())
        inner = [to_json(value) for _, value in pairs]
        plain = all(isinstance(key, str) for key, _ in pairs) and False not in inner
        return {"dict": [[key, own] for (key, _), own in zip(pairs, inner, strict=True)]} if plain else False
    inner = [to_json(value) for value in structure]
    return False if False in inner or hasattr(structure, "_fields") else {"tuple": inner}


# ---- reading -----------------------------------------------------------------------------------------------


def read(
    path: str | Path, recurrences: Sequence[tuple[Names, Stepped]], running: Sequence[StepKind] | None
) -> SavedRows:
    """Reads the rows of a saved stream; raises `FileError` if it was saved from other recurrences.

    path: the file.
    recurrences: for each layer, its names and its recurrence.
    running: the steps that the stream runs; None before its first step.
    """
    arrays, metadata = safetensors.read_described(path)
    try:
        layers = layer_descriptions(metadata, len(recurrences))
        begun = begun_of(arrays)
        own: list[tuple[Names, StepKind]] = []
        for index, ((names, rnn), layer) in enumerate(zip(recurrences, layers, strict=True)):
            with named(*names) if names else nullcontext():
                kind = kind_of(rnn, layer, None if running is None else running[index])
                own.append((names, kind))
        return SavedRows([kind for _, kind in own], new_rows(arrays, own, len(begun)), begun)
    except StepnetError as error:
        raise FileError(f"{path}: {error}") from None


def layer_descriptions(metadata: Mapping[str, str], count: int) -> list[dict[str, Any]]:
    """Returns the description of each layer of a saved stream; raises `FileError` unless there are `count`.

    metadata: the metadata of the file.
    """
    if metadata.get("format") != FORMAT:
        raise FileError(
            f"this is not a saved stream: its metadata has no format {FORMAT!r}; stream.save(path) writes one"
        )
    if metadata.get("version") != str(VERSION):
        raise FileError(
            f"it is of version {metadata.get('version')!r} of saved streams, written by stepnet "
            f"{metadata.get('stepnet')!r}; this stepnet ({__version__}) reads version {VERSION}"
        )
    data = metadata.get(LAYERS, "").encode()
    layers = jsons.parsed(data, "description", Store(None, len(data))).get(LAYERS)
    if not isinstance(layers, list) or not all(isinstance(layer, dict) for layer in cast("Any", layers)):
        raise FileError("its description has no list of layers")
    layers = cast("list[dict[str, Any]]", layers)
    if len(layers) != count:
        raise FileError(f"it has the state of {len(layers)} recurrences, and this stream runs {count}")
    return layers


def begun_of(arrays: Mapping[str, Array]) -> Array:
    """Returns the number of steps that each saved row has taken; raises `FileError` if it is missing or
    wrong.

    arrays: the arrays of the file by name.
    """
    begun = arrays.get(BEGUN)
    if begun is None or begun.ndim != 1 or begun.dtype != np.int64:
        has = "no" if begun is None else f"a {begun.dtype}{list(begun.shape)}"
        raise FileError(f"it has {has} array {BEGUN!r}; there should be an int64 for each row")
    if ((begun < 0) | (begun > MOST_BEGUN)).any():
        raise FileError(f"{BEGUN!r} has counts of steps outside 0 to {MOST_BEGUN}")
    return begun


def kind_of(rnn: Stepped, layer: Mapping[str, Any], running: StepKind | None) -> StepKind:
    """Traces a layer's step for the inputs of a saved stream; raises `FileError` unless it is the saved step.

    rnn: the recurrence of the layer.
    layer: the description of the layer in the file.
    running: the step that the stream runs; None before its first step. It has the structures of inputs and
        statics (values that each sequence has once) where the file cannot hold them.
    """
    inputs, statics = (specs_of(layer.get(what), what) for what in ("inputs", "statics"))
    if running is not None and (inputs is False or statics is False):
        inputs, statics = running.inputs, running.statics
    if inputs is False or statics is False:
        raise FileError(
            "its inputs or statics are namedtuples, or dicts with keys that are no texts, which a file does "
            "not hold; take a step of the stream, and then load it"
        )
    other = "it was saved from another step"
    try:
        kind = kind_for(rnn, inputs, statics)
    except (StepnetError, *FROM_STEPS) as error:  # the user's function ran on unknown inputs
        reason = f"{type(error).__name__}: {error}"
        raise FileError(f"{other}, whose inputs this one does not take ({reason})") from None
    own = parameters_digest(rnn, kind)
    if layer.get("parameters") != own:
        raise FileError(
            f"it was saved with other parameters (digest {layer.get('parameters')!r}, here {own!r}); load it "
            "with the model that it was saved from"
        )
    digest = step_digest(kind)
    if layer.get("step") != digest:
        raise FileError(
            f"{other} (digest {layer.get('step')!r}, here {digest!r}); load it with the {rnn.noun} and the "
            "version of stepnet that it was saved from"
        )
    if running is not None:
        for what, mine, its in (("inputs", running.inputs, inputs), ("statics", running.statics, statics)):
            if (skeleton(mine), kinds(mine)) != (skeleton(its), kinds(its)):
                raise FileError(
                    f"its {what} are {specs_text(its)}; those of this stream are {specs_text(mine)}"
                )
    return kind


def specs_text(specs: Any) -> str:
    """Returns a structure of `Spec`s as text for messages: the name, dtype and features of each."""
    return ", ".join(
        f"{name} {spec.dtype}{list(spec.shape)}".strip() for name, spec in named_leaves(specs)
    ) or str(None)


def specs_of(read: Any, what: str, depth: int = 0) -> Any:
    """Converts JSON values of `to_json` back to a structure of `Spec`s; raises `FileError` for other values.

    False, which stands for a structure that a file cannot hold, is returned unchanged.

    read: the JSON values.
    what: the name of the structure in messages.
    depth: the number of structures around this one.
    """
    if read is None or read is False:
        return read
    if depth > DEEPEST:
        raise FileError(f"its {what} nest more than {DEEPEST} deep")
    if isinstance(read, dict):
        fields = cast("dict[str, Any]", read)
        if fields.keys() == SPEC and isinstance(fields["dtype"], str) and isinstance(fields["shape"], list):
            try:
                return Spec(
                    tuple(cast("list[Any]", fields["shape"])),
                    fields["dtype"],
                    fields["levels"],
                    fields["axis"],
                )
            except StepnetError as error:
                raise FileError(f"its {what} are none: {error}") from None
        for kind, of in (("dict", dict_of), ("tuple", tuple_of)):
            inner: Any = fields.get(kind)
            if fields.keys() == {kind} and isinstance(inner, list):
                return of(cast("list[Any]", inner), what, depth + 1)
    raise FileError(f"its {what} are described by {str(cast('Any', read))[:60]!r}, which is no description")


def tuple_of(inner: list[Any], what: str, depth: int) -> Any:
    """Returns the tuple of structures that a JSON list describes. inner: the list. what, depth: the name of
    the structures in messages, and the number of structures around them.
    """
    return tuple(specs_of(own, what, depth) for own in inner)


def dict_of(inner: list[Any], what: str, depth: int) -> Any:
    """Returns the dict of structures that a list of [key, value] pairs in JSON describes.

    inner: the list.
    what, depth: the name of the structures in messages, and the number of structures around them.
    """
    entries: dict[str, Any] = {}
    for pair in inner:
        if not isinstance(pair, list) or len(cast("list[Any]", pair)) != 2 or not isinstance(pair[0], str):
            raise FileError(f"its {what} have an entry that is no name and value")
        entries[pair[0]] = specs_of(pair[1], what, depth)
    return entries


def new_rows(arrays: Mapping[str, Array], kinds: Sequence[tuple[Names, StepKind]], count: int) -> list[New]:
    """Returns, for each layer, the memories and statics (values that each sequence has once) of the rows
    (sequences) in a saved stream's file; raises `FileError` for missing, unknown or wrong arrays.

    Missing memories to which `reset` returns are zeros, as `write` leaves these out.

    arrays: the arrays in the file, by name. kinds: pairs of the names of a layer and its step. count: the
    number of rows.
    """
    left = {name: array for name, array in arrays.items() if name != BEGUN}

    def taken(name: str, shape: tuple[Any, ...], dtype: Any) -> Array:
        """Takes an array out of the file's arrays; raises `FileError` if it is missing or does not fit.

        shape: the sizes that it must have; None for any.
        """
        array = left.pop(name, None)
        if array is None:
            raise FileError(f"it has no array {name!r}")
        fits = len(shape) == array.ndim and all(
            size in (None, own) for size, own in zip(shape, array.shape, strict=True)
        )
        if not fits or array.dtype != np.dtype(dtype):
            expected = [count if size is None else size for size in shape]
            raise FileError(
                f"{name!r} is {array.dtype}{list(array.shape)}; it should be {np.dtype(dtype)}{expected}"
            )
        return array

    def static(spec: Spec, names: Iterator[str]) -> Any:
        """Returns a static (a value that all steps of a row read) from the arrays of a saved stream: an
        array, or a Ragged made of its values and offsets.
        """
        if not spec.axis:
            return taken(next(names), (count, *spec.shape), spec.dtype)
        values = taken(next(names), (None, *spec.shape), spec.dtype)
        offsets = taken(name := next(names), (count + 1,), np.int64)
        with named(repr(name)):
            return Ragged(values, (offsets,))

    new: list[New] = []
    for (_, kind), names in zip(kinds, names_of(kinds), strict=True):
        specs = leaves(kind.traced.memory)
        shapes = [((count, *spec.shape), spec.dtype) for spec in specs]
        memory = [taken(name, *shape) for name, shape in zip(names.memory, shapes, strict=True)]
        first = [
            taken(name, *shape) if name in left else np.zeros(*shape)
            for name, shape in zip(names.first, shapes, strict=True)
        ]
        own = iter(names.statics)
        new.append(New(memory, first, [static(spec, own) for spec in leaves(kind.statics)]))
    if left:
        raise FileError(f"it has an array {min(left)!r}, which no recurrence of this stream has")
    return new
