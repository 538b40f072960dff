"""The sequences of a call, checked and converted to the arrays that engines take."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np

from stepnet.compiler.net.types import STEPS, is_derived, native, whole_axis
from stepnet.compiler.net.windows import derived_offsets, own_name
from stepnet.compiler.trace.spec import Spec
from stepnet.compiler.values.arguments import array_of, checked_dtype
from stepnet.compiler.values.fork_guard import IMPORTS
from stepnet.compiler.values.records import dataclass
from stepnet.compiler.values.structure import rebuild, skeleton, titled_leaves
from stepnet.errors import InputError
from stepnet.ragged import Ragged
from stepnet.ragged.offsets import path_of
from stepnet.ragged.positions import Positions

Array = np.ndarray


LISTS = (
    "a list is several inputs of a step: for one input give np.array(list), or sn.Ragged.from_list(list) for "
    "sequences of different lengths"
)

LENGTHS_ADVICE = "the lengths of sequences are an argument of their own: lengths=lengths"
"""The advice for lengths that stand where a call has something else."""


@dataclass(frozen=True)
class Batch:
    """The sequences of a call, as arrays, and the positions of their steps in them.

    structure: the structure of the inputs.
    arrays: for each input [total, features...], or the values of all inner sequences end to end.
    levels: the number of ragged levels of each array; 1 for a value per step.
    positions: the positions of the steps in the arrays.
    like: the layout of outputs per step: the input with the most levels, if inputs are Raggeds; else their
        first two sizes.
    padded: the positions in the caller's arrays, if their steps were copied end to end (`end_to_end`).
    axes: for each input the axis of its steps if it has steps of its own, whose offsets `positions.beside`
        has; else "". None if no input has.
    """

    structure: Any
    arrays: list[Array]
    levels: list[int]
    positions: Positions
    like: Any
    padded: Positions | None = None
    axes: list[str] | None = None

    @property
    def count(self) -> int:
        """The number of sequences in the batch."""
        return self.positions.rows

    @property
    def key(self) -> tuple[Any, ...]:
        """The cache key of a trace for these inputs: structure, dtypes, features, levels, axes of steps."""
        single = isinstance(self.structure, Ragged | np.ndarray)
        kinds = ((a.dtype, a.shape[1:], n) for a, n in zip(self.arrays, self.levels, strict=True))
        return "array" if single else skeleton(self.structure), *kinds, *(self.axes or ())

    @property
    def specs(self) -> Any:
        """The `Spec`s (features, dtype, levels inside a step) of the inputs, in their structure."""
        axes = self.axes or [""] * len(self.arrays)
        each = zip(self.arrays, self.levels, axes, strict=True)
        specs = [Spec(a.shape[1:], a.dtype, levels - 1, own_name(axis)) for a, levels, axis in each]
        return rebuild(self.structure, specs)

    @classmethod
    def of(
        cls,
        sequences: Any,
        lengths: Any,
        time_major: bool = False,
        own: Mapping[str, str] | None = None,
        argument: str = "",
    ) -> "Batch":
        """Checks a caller's sequences and makes the batch; raises `InputError` if they do not fit together.

        sequences: a Ragged, a padded array, or a structure of either kind.
        lengths: the lengths of padded sequences, or None.
        time_major: whether arrays are [time, batch, features...]; they are read in place.
        own: None if all inputs have the same lengths; else the axes of inputs that are declared to have steps
            of their own, by the name of the input. Others may have other lengths too.
        argument: the name of the step's argument for the sequences, for messages; "" for none.
        """
        named = list(titled_leaves(sequences, argument))
        if not named:
            raise InputError("there are no input sequences")
        raggeds = [name for name, leaf in named if isinstance(leaf, Ragged)]
        if not raggeds:
            return cls._of_arrays(sequences, named, lengths, time_major, own)
        if len(raggeds) < len(named):
            array = next(name for name, leaf in named if not isinstance(leaf, Ragged))
            raise InputError(
                f"input {raggeds[0]} is a Ragged among arrays, unlike input {array}; "
                "give all inputs as Raggeds or all as arrays"
            )
        check_no_lengths(lengths)
        if time_major:
            raise InputError(
                "time_major=True is for arrays [time, batch, features...]; a Ragged knows where its steps are"
            )
        return cls._of_raggeds(sequences, named, own)

    @classmethod
    def _of_raggeds(
        cls, structure: Any, named: list[tuple[str, Ragged]], own: Mapping[str, str] | None
    ) -> "Batch":
        """Makes the batch of Raggeds. Raises `InputError` unless the lengths agree at all levels of nested
        sequences that they share; inputs that may have steps of their own are not compared.

        named: the Raggeds with their names in `structure`. own: the declared names of the axes of inputs with
        steps of their own, by input; None if all have the same lengths.
        """
        shared = [pair for pair in named if pair[0] not in (own or {})]
        first, deepest = max(shared or named, key=lambda pair: pair[1].levels)
        may_differ = [own is not None and r.levels == 1 and len(r) == len(deepest) for _, r in named]
        for (name, ragged), differs in zip(named, may_differ, strict=True):
            if ragged is not deepest and not differs:
                check_same_lengths(first, deepest, name, ragged)
        arrays = [checked_array(ragged.values, f"input {name}".strip()) for name, ragged in named]
        for (name, ragged), array in zip(named, arrays, strict=True):
            if len(array) != (count := int(ragged.offsets[-1][-1])):
                raise InputError(
                    f"{f'input {name}'.strip()} has {len(array)} values, and its offsets end at {count}: its "
                    "array has got another shape since the Ragged was made"
                )
        offsets, *inner = deepest.offsets
        axes, beside = axes_of([(name, ragged.offsets[0]) for name, ragged in named], offsets, own)
        return cls(
            structure,
            arrays,
            [ragged.levels for _, ragged in named],
            Positions.end_to_end(offsets, tuple(inner), beside),
            deepest,
            axes=axes,
        )

    @classmethod
    def _of_arrays(
        cls,
        structure: Any,
        named: list[tuple[str, Any]],
        lengths: Any,
        time_major: bool,
        own: Mapping[str, str] | None,
    ) -> "Batch":
        """Makes the batch of padded arrays, which are read in place; `lengths` excludes the padding.

        Raises `InputError` unless all have the same first two sizes; inputs with steps of their own need only
        the same number of sequences.

        named: the arrays with their names in `structure`. time_major: whether they are [time, batch,
        features...]. own: the declared names of the axes of inputs with steps of their own, by input; None if
        all have the same lengths.
        """
        axes = "[time, batch, features]" if time_major else "[batch, time, features]"
        arrays = [checked_array(leaf, f"input {name}".strip()) for name, leaf in named]
        for array in arrays:
            if array.ndim < 2:
                raise InputError(f"sequences are a Ragged or an array {axes}; {advice_for(structure, array)}")
        differ = len({array.shape[:2] for array in arrays}) > 1
        if own is not None and (differ or any(name in own for name, _ in named)):
            return cls._of_several(structure, named, arrays, lengths, time_major, own)
        for (name, _), array in zip(named, arrays, strict=True):
            if array.shape[:2] != arrays[0].shape[:2]:
                raise InputError(
                    f"inputs `{named[0][0]}` and `{name}` have different batch and time: "
                    f"{arrays[0].shape[:2]} and {array.shape[:2]}; several sequences are one input: "
                    "Ragged.from_list([...])"
                )
        first, second = like = arrays[0].shape[:2]
        count, time = (second, first) if time_major else (first, second)
        known = np.full(count, time, np.int64) if lengths is None else checked_lengths(lengths, count, time)
        flat = [array.reshape(count * time, *array.shape[2:]) for array in arrays]
        return cls(structure, flat, [1] * len(flat), Positions.padded(known, time, time_major), like)

    @classmethod
    def _of_several(
        cls,
        structure: Any,
        named: list[tuple[str, Any]],
        arrays: list[Array],
        lengths: Any,
        time_major: bool,
        own: Mapping[str, str],
    ) -> "Batch":
        """Makes the batch of arrays without padding, some of which have steps of their own. Raises
        `InputError` for other numbers of sequences, and for `lengths`.

        named: the arrays with their names in `structure`, and `arrays` the same ones, checked. lengths: must
        be None, as it could not say which input its numbers belong to. time_major: whether arrays are [time,
        batch, features...]. own: the declared names of the axes of inputs with steps of their own, by input.
        """
        if lengths is not None:
            raise InputError(
                "lengths= is for arrays with the same number of steps: give inputs of different lengths as "
                "Raggeds"
            )
        main = next((place for place, (name, _) in enumerate(named) if name not in own), 0)
        made = cls._of_arrays(structure, named[main : main + 1], None, time_major, None)
        count = made.count
        flat: list[Array] = []
        offsets: list[tuple[str, Array]] = []
        for (name, _), array in zip(named, arrays, strict=True):
            rows = np.ascontiguousarray(array.swapaxes(0, 1)) if time_major else array
            if len(rows) != count:
                raise InputError(
                    f"inputs `{named[main][0]}` and `{name}` have {count} and {len(rows)} sequences; their "
                    "numbers should be equal"
                )
            offsets.append((name, np.arange(count + 1, dtype=np.int64) * rows.shape[1]))
            flat.append(rows.reshape(count * rows.shape[1], *rows.shape[2:]))
        axes, beside = axes_of(offsets, offsets[main][1], own)
        positions = Positions.padded(made.positions.lengths, arrays[main].shape[1 - time_major])
        whole = cls(structure, flat, [1] * len(flat), positions.with_statics(beside), made.like, axes=axes)
        # Outputs along the steps of the main input are laid out as that is, which may be [time, batch, ...].
        return replace(whole, padded=made.positions) if time_major else whole

    def offsets_along(self, axis: str) -> Array:
        """Returns the offsets of the sequences along an axis of steps: the axis of the inputs, an axis
        derived from it (as after a stride), or the axis of an input with steps of its own.
        """
        return derived_offsets(axis, self.positions.offsets, self.positions.beside)

    @property
    def steps_like(self) -> Any:
        """The layout in which the batch has a single value per step, as in a mask: a Ragged without nested
        sequences (the input if it is one), or the first two sizes of the inputs' arrays.
        """
        if isinstance(self.like, Ragged) and self.like.levels > 1:
            return Ragged(np.empty(self.positions.total), self.like.offsets[:1])
        return self.like

    def end_to_end(self) -> "Batch":
        """Returns the batch with the steps of padded arrays copied end to end, without the padding; itself if
        they are so already.
        """
        positions = self.positions
        if positions.is_packed:
            return self
        packed = Positions.end_to_end(positions.offsets, (), positions.beside)
        indices, axes = positions.all_step_indices, self.axes or [""] * len(self.arrays)
        arrays = [
            array if axis else np.ascontiguousarray(array[indices])
            for array, axis in zip(self.arrays, axes, strict=True)
        ]
        return replace(self, arrays=arrays, positions=packed, padded=positions)

    def seen_whole(self, axes: Sequence[str]) -> "Batch":
        """Returns a copy of the batch that also has the offsets of axes along which a step of a recurrence
        reads all steps of a sequence at once, as it reads a static sequence.

        axes: the axes of the steps that are read so, such as "steps".
        """
        whole = {whole_axis(axis): self.offsets_along(axis) for axis in axes}
        return replace(self, positions=self.positions.with_statics({**self.positions.beside, **whole}))

    def like_input(self, output: Array, levels: int = 1, axis: str = STEPS[-1]) -> Any:
        """Returns an output in the layout of the inputs: a `Ragged`, or an array [batch, time, ...].

        levels: the number of ragged levels of the output; 0 for one entry per sequence, which is returned
            unchanged.
        axis: the axis of its steps, which may be derived from that of the inputs, as after a stride.
        """
        if not levels:
            return output
        if isinstance(self.like, Ragged):
            if is_derived((axis,)):
                return Ragged(output, (self.offsets_along(axis),))
            if self.like.levels == levels:
                return self.like.with_values(output)
            return Ragged(output, self.like.offsets[:levels])
        lead, padded = self.padded_like(axis)
        if padded is not None:
            whole = np.zeros((padded.total, *output.shape[1:]), output.dtype)
            whole[padded.all_step_indices] = output
            output = whole
        return output.reshape(*lead, *output.shape[1:])

    def of_output(self, array: Array, axis: str) -> Array:
        """Returns values that the caller gives in the layout of an output in the layout in which engines
        compute it, steps end to end: the inverse of `like_input`.

        array: the values, such as the cotangents of the output; of a Ragged its values.
        axis: the axis of the output's steps; "" for an output per sequence, which is returned unchanged.
        """
        if not axis or isinstance(self.like, Ragged):
            return array
        _, padded = self.padded_like(axis)
        flat = array.reshape(-1, *array.shape[2:])
        return flat if padded is None else np.ascontiguousarray(flat[padded.all_step_indices])

    def output_positions(self, axis: str) -> Positions:
        """Returns where the steps of the sequences lie in an output, as the caller gets it. axis: the axis of
        the output's steps, which may be derived from that of the inputs, as after a stride.
        """
        padded = None if isinstance(self.like, Ragged) else self.padded_like(axis)[1]
        if padded is not None or not is_derived((axis,)):
            return padded or self.positions
        return Positions.end_to_end(self.offsets_along(axis))

    def padded_like(self, axis: str) -> tuple[tuple[int, int], Positions | None]:
        """Returns the first two sizes of an array of outputs, and the positions of their steps in it. The
        positions are None if the steps lie end to end, and if outputs are computed where the inputs' steps
        lie.

        axis: the axis of the steps, which may be derived from that of the inputs, as after a stride.
        """
        if not is_derived((axis,)):
            return self.like, self.padded
        time_major = self.padded is not None and self.padded.steps is not None
        first, second = cast("tuple[int, int]", self.like)
        count, time = (second, first) if time_major else (first, second)
        of_one = {own: offsets[:2] for own, offsets in self.positions.beside.items()}
        time = int(derived_offsets(axis, np.array([0, time]), of_one)[-1])
        lengths = np.diff(self.offsets_along(axis))
        padded = Positions.padded(lengths, time, time_major)
        if time_major:
            return (time, count), padded
        return (count, time), None if padded.is_packed else padded


def axes_of(
    named: Sequence[tuple[str, Array]], offsets: Array, own: Mapping[str, str] | None
) -> tuple[list[str] | None, dict[str, Array]]:
    """Finds the axis of each input's steps: "" for the axis of the model's steps, else a name. Returns the
    axes, and the offsets of the named ones by name; (None, {}) if all inputs have the steps of the model.

    named: the offsets of each input with its name. offsets: the offsets of the model's steps. own: the
    declared names of the axes of inputs with steps of their own, by input; None if all have the same lengths.
    """
    differ = (level is not offsets and not np.array_equal(level, offsets) for _, level in named)
    if own is None or not (own or any(differ)):
        return None, {}
    with IMPORTS:  # late: few models have such inputs
        from stepnet.model.own_steps import axes_of_inputs

    return axes_of_inputs(named, offsets, own)


def check_no_lengths(lengths: Any) -> None:
    """Raises `InputError` for `lengths` together with Raggeds, which have their own."""
    if lengths is not None:
        raise InputError("a Ragged knows its lengths; lengths= goes with an array [batch, time, features]")


def check_same_lengths(first_name: str, first: Ragged, second_name: str, second: Ragged) -> None:
    """Raises `InputError` unless two inputs have the same lengths at all levels of nesting that both have.

    The message names the first sequence whose lengths differ.

    first_name, second_name: the names of the inputs.
    first, second: the inputs.
    """
    if len(first) != len(second):
        raise InputError(
            f"inputs `{first_name}` and `{second_name}` have different sequences: "
            f"`{first_name}` has {len(first)} of them, and `{second_name}` has {len(second)}"
        )
    for level, (mine, theirs) in enumerate(zip(first.offsets, second.offsets, strict=False)):
        here, there = np.diff(mine), np.diff(theirs)
        differ = np.flatnonzero(here != there)
        if len(differ):
            path = path_of(int(differ[0]), first.offsets[:level])
            place = " of ".join(f"sequence {number}" for number in reversed(path))
            raise InputError(
                f"inputs `{first_name}` and `{second_name}` have sequences of different lengths: {place} has "
                f"length {here[differ[0]]} in `{first_name}` and {there[differ[0]]} in `{second_name}`"
            )


def checked_array(value: Any, what: str) -> Array:
    """Returns a value as a C-contiguous array in native byte order.

    Raises `InputError` for a Ragged, and for a dtype that steps do not support.

    what: the name of the value in messages.
    """
    if isinstance(value, Ragged):
        raise InputError(f"{what} is a Ragged among arrays; give all inputs as Raggeds or all as arrays")
    array = array_of(value, what)
    checked_dtype(array, what)
    return array if array.flags.c_contiguous and array.dtype.isnative else native(array)


def checked_lengths(lengths: Any, count: int, time: int) -> Array:
    """Returns the argument `lengths` as int64; raises `InputError` unless it has one whole number per
    sequence, from 0 to `time`.

    count, time: the number of sequences, and the number of steps of the padded array.
    """
    array = array_of(lengths, "lengths")
    if array.shape != (count,) or (array.dtype.kind not in "iu" and count):
        raise InputError(
            f"lengths are {count} whole numbers, one per sequence, not {array.dtype}{list(array.shape)}"
        )
    if not count:
        return np.zeros(0, np.int64)
    wrong = np.flatnonzero((array < 0) | (array > time))
    if len(wrong):
        raise InputError(f"lengths[{wrong[0]}] is {array[wrong[0]]}; the array has {time} steps")
    return array.astype(np.int64)


def advice_for(structure: Any, array: Array) -> str:
    """Returns the end of a message about an array of fewer than two axes among the inputs of a call
    (`structure`): what was given, and what to give instead.
    """
    if hasattr(structure, "batch_sizes"):
        return "for a PackedSequence give its padded array, and lengths= as pad_packed_sequence returns them"
    if isinstance(structure, tuple) and array.ndim == 1 and array.dtype.kind in "iu":
        return f"this one is {array.shape}: {LENGTHS_ADVICE}"
    return LISTS if isinstance(structure, list) else f"this one is {array.shape}"
