"""A recurrent layer on oneDNN, or on the engine llvm if oneDNN lacks its cell or activations."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np

from stepnet.compiler.targets import AUTO
from stepnet.compiler.targets.calibration import Calibration, data_scale, weight_scales
from stepnet.compiler.targets.onednn.library import OneDnnLibrary, library
from stepnet.compiler.targets.onednn.primitives import RecurrenceWeights
from stepnet.compiler.targets.onednn.recurrence import OneDnnRecurrence
from stepnet.compiler.targets.onednn.run import run_recurrence
from stepnet.compiler.targets.onednn.training import Training
from stepnet.compiler.values.arguments import choice, flag, instance, mapping
from stepnet.compiler.values.once import computed_once
from stepnet.compiler.values.records import dataclass
from stepnet.errors import InputError, RefusedError
from stepnet.layout import registry
from stepnet.layout.arguments import as_arrays, one_dtype
from stepnet.layout.layers import layers
from stepnet.layout.solve import sizes_of
from stepnet.model.recurrence import RNN
from stepnet.onednn.accuracy import Accuracy, compared
from stepnet.onednn.conversion import LayerWeights, converted
from stepnet.onednn.pullback import Pullback
from stepnet.onednn.sequences import (
    Arguments,
    Sequences,
    attention_of,
    check_float,
    initial_of,
    reversed_indices,
    sample_sequences,
)

Array = np.ndarray

DTYPES = ("float32", "bfloat16", "float16", "int8")
DTYPE = f"dtype is one of {', '.join(DTYPES)}"
CELLS = ("last", "all", "none")
C_WHEN = "cell is 'last' (c at the end of each sequence), 'all' (at each step) or 'none'"


@dataclass(frozen=True, eq=False)
class Layer:
    """A recurrence on oneDNN: `outputs, final = layer(sequences)`. `stepnet.onednn.layer` makes one.

    Attributes:
        source: The weights in the caller's layout.
        library: The library of oneDNN.
        inputs: The number of features of a step.
        states: The sizes of the memories, h or h and c.
        recurrence: The recurrence of oneDNN; None if the layer runs on llvm.
        weights: The weights of the recurrence.
        layout: oneDNN's layout of the weights.
        reason: The reason why the layer runs on llvm; None if it runs on oneDNN.
        dtype: The dtype of the results.
    """

    source: LayerWeights
    library: OneDnnLibrary
    inputs: int
    states: tuple[int, ...]
    recurrence: OneDnnRecurrence | None
    weights: RecurrenceWeights | None
    layout: str
    reason: str | None
    dtype: np.dtype[Any]

    @property
    def engine(self) -> str:
        """The engine that runs the layer: "onednn", or that of `engine="auto"`, "llvm"."""
        return "onednn" if self.reason is None else AUTO[0]

    def __repr__(self) -> str:
        """The recurrence of oneDNN, or the layout and the reason why the engine llvm runs it, for users."""
        return f"Layer({self.recurrence or f'{self.source.layout} on llvm: {self.reason}'})"

    def __call__(
        self,
        x: Any,
        h0: Any = None,
        c0: Any = None,
        *,
        attention: Any = None,
        reverse: bool = False,
        cell: str = "last",
    ) -> tuple[Any, Any]:
        """Runs the recurrence on sequences; returns the outputs of each step, and the memory at each
        sequence's end.

        Args:
            x: A `Ragged` of one level, or an array [batch, time, features].
            h0: The memory h before the first step, [batch, hidden]; zeros by default.
            c0: The memory c of an LSTM before the first step, [batch, hidden]; zeros by default.
            attention: For a layer with attention, one number for each step, in the form of `x`.
            reverse: Whether each sequence runs from its own last step.
            cell: For an LSTM, when its memory c is wanted: "last", "all" or "none". oneDNN gives c at the end
                of a primitive alone. So where lengths differ, "last" runs one primitive for each different
                length, and "all" one for each step.

        Returns:
            The outputs in the form of `x`; with cell="all" a dict of "h" and "c". The final h [batch,
            hidden]; of an LSTM a dict of "h" and, unless cell="none", "c".

        Raises:
            InputError: For arguments that do not fit.
            LibraryError: If oneDNN reports a failure.
        """
        reverse, cell = flag(reverse, "reverse"), choice(cell, C_WHEN, CELLS)
        arguments = self.arguments(x, h0, c0, attention, reverse)
        if self.recurrence is None or self.weights is None:
            return self.on_llvm(arguments.sequences, arguments.initial, reverse, cell)
        is_lstm = len(self.states) > 1
        recurrence = directed(self.recurrence, reverse)
        made = run_recurrence(
            self.library,
            recurrence,
            self.weights,
            arguments.sequences.padding(recurrence.direction == "right2left"),
            arguments.x,
            arguments.initial,
            attention=arguments.ordered_attention,
            last_c=is_lstm and cell != "none",
            all_c=is_lstm and cell == "all",
        )
        outputs = arguments.like(self.result(made.outputs))
        if not is_lstm:
            return outputs, self.result(made.h)
        if made.cells is not None:
            outputs = {"h": outputs, "c": arguments.like(self.result(made.cells))}
        final = {"h": made.h} if made.c is None else {"h": made.h, "c": made.c}
        return outputs, {name: self.result(value) for name, value in final.items()}

    def vjp(
        self, x: Any, h0: Any = None, c0: Any = None, *, reverse: bool = False
    ) -> tuple[Any, Any, Pullback]:
        """Runs the recurrence and prepares its gradients, which oneDNN computes.

        Args:
            x: A `Ragged` of one level, or an array [batch, time, features].
            h0: The memory h before the first step, [batch, hidden]; zeros by default.
            c0: The memory c of an LSTM before the first step, [batch, hidden]; zeros by default.
            reverse: Whether each sequence runs from its own last step.

        Returns:
            The outputs and the final memories as a call gives them, and a `Pullback`, the function that
                computes gradients from cotangents.

        Raises:
            InputError: For arguments that do not fit.
            RefusedError: Where llvm runs, for float16 and int8, and with attention.
        """
        reverse = flag(reverse, "reverse")
        recurrence, weights = self.on_onednn("float32")
        if reason := recurrence.refuse_gradient(self.library):
            raise RefusedError(f"onednn: {reason}")
        arguments = self.arguments(x, h0, c0, None, reverse)
        tape = Training(
            self.library,
            directed(recurrence, reverse),
            weights,
            arguments.sequences.call,
            arguments.x.astype(np.float32, copy=False),
            arguments.initial,
        ).forward()
        result = tape.results
        final = {name: self.result(c) for name, c in (("h", result.h), ("c", result.c)) if c is not None}
        pullback = Pullback(self.source, self.layout, self.states, arguments, tape)
        outputs = arguments.like(self.result(result.outputs))
        return outputs, final if len(final) > 1 else final["h"], pullback

    def arguments(self, x: Any, h0: Any, c0: Any, attention: Any, reverse: bool) -> Arguments:
        """Checks the arguments of a call of this layer, which are those of `__call__`; returns them in the
        form that the engines take. reverse: whether each sequence runs from its last step. Raises
        `InputError`, also for attention where the cell has none, or without it where it has.
        """
        sequences = Sequences.of(x, self.inputs)
        initial = initial_of(sequences, self.states, h0, c0)
        row = None if self.recurrence is None else self.recurrence.row
        if attention is not None and (row is None or not row.has_attention):
            raise InputError(f"attention is for a layer of onednn.augru, and this is {self}")
        if row is None or not row.has_attention:
            return Arguments(sequences, initial)
        if attention is None:
            raise InputError(f"{self} takes attention=, one number for each step of x")
        order = reversed_indices(sequences.offsets) if reverse and row.one_direction else None
        return Arguments(sequences, initial, attention_of(attention, sequences), order)

    def result(self, values: Array) -> Array:
        """Casts an array of outputs or memories to the dtype of this layer's results."""
        return values.astype(self.dtype, copy=False)

    def on_llvm(
        self, sequences: Sequences, initial: Sequence[Array | None], reverse: bool, cell: str
    ) -> tuple[Any, Any]:
        """Runs this layer by the engine llvm, where oneDNN lacks its cell; returns (outputs, final memories).

        initial: the initial memories h, and c of an LSTM; None for zeros. reverse: True to run from each
        sequence's last step. cell: of an LSTM, "none" to leave the final c out; "all" raises `RefusedError`.
        """
        is_lstm = len(self.states) > 1
        if is_lstm and cell == "all":
            raise RefusedError(
                f"only oneDNN returns c of each step, and this layer runs on llvm: {self.reason}"
            )
        memories = [
            np.zeros((sequences.rows, size), np.float32) if array is None else array
            for array, size in zip(initial, self.states, strict=True)
        ]
        initial_memory = dict(zip("hc", memories, strict=True)) if is_lstm else memories[0]
        x = sequences.like(sequences.values.astype(np.float32, copy=False))
        outputs, final = self.rnns[reverse](x, initial_memory)
        if is_lstm and cell == "none":
            final = {"h": final["h"]}
        return outputs, final

    @computed_once
    def rnns(self) -> "tuple[RNN, RNN]":
        """This layer's recurrences for the engine llvm, in float32: (forward, reverse)."""
        source = self.source
        recurrences: Any = tuple(
            layers(source.arrays, source.layout, semantics=source.semantics, dtype="float32", reverse=reverse)
            for reverse in (False, True)
        )
        return recurrences

    def calibrate(self, samples: Sequence[Any], keep: float = 1.0) -> Calibration:
        """Computes the scales to run this layer in int8: of the inputs from samples, of the weights from
        themselves.

        Args:
            samples: `Ragged`s or arrays [batch, time, features], such as those that will run.
            keep: The fraction of the inputs' numbers that lies within the scale. With 0.999 the largest of a
                thousand saturate, and the others are finer for it.

        Raises:
            InputError: For samples without steps, and for NaN and infinity.
            RefusedError: For a recurrence that oneDNN does not have in int8.
        """
        _, weights = self.on_onednn("int8")
        both = [weights.arrays[name] for name in ("weights_layer", "weights_iter")]
        values = [sequences.values for sequences in sample_sequences(samples, self.inputs)]
        scale, shift = data_scale(values, keep)
        return Calibration(scale, shift, weight_scales(both, self.library.largest_weight))

    def in_dtype(self, dtype: str, calibration: Calibration | None = None) -> "Layer":
        """Returns this layer in another dtype of oneDNN's: float32, bfloat16, float16 or int8.

        Args:
            dtype: The dtype.
            calibration: The scales of int8, required for int8 alone.

        Raises:
            InputError: For another dtype.
            RefusedError: For a dtype that this recurrence or this processor does not have, with the reason.
        """
        recurrence, weights = self.on_onednn(dtype)
        check_calibration(calibration)
        if calibration is not None and dtype != "int8":
            raise InputError(f"calibration= is for dtype='int8', and dtype is {dtype!r}")
        target = replace(recurrence, dtype=dtype, calibration=calibration)
        reason = target.refuse(self.library)
        if reason is not None:
            raise RefusedError(f"onednn: {reason}")
        if calibration is not None and len(calibration.weights) != len(target.row.gates) * target.hidden:
            raise InputError(
                f"the calibration has {len(calibration.weights)} scales of weights, and there are "
                f"{len(target.row.gates)} gates of {target.hidden} units"
            )
        return replace(self, recurrence=target, weights=RecurrenceWeights(weights.arrays))

    def on_onednn(self, dtype: str) -> tuple[OneDnnRecurrence, RecurrenceWeights]:
        """Returns the layer's recurrence and weights for oneDNN; raises `RefusedError` for a layer that runs
        on llvm. dtype: the dtype to compute in, which is checked and named in the message.
        """
        choice(dtype, DTYPE, DTYPES)
        if self.recurrence is None or self.weights is None:
            raise RefusedError(f"onednn: this layer runs on llvm, which has no {dtype}: {self.reason}")
        return self.recurrence, self.weights

    def accuracy(self, samples: Sequence[Any], reverse: bool = False) -> Accuracy:
        """Measures the error of this layer's dtype: compares its outputs for samples with those in float32.

        Args:
            samples: `Ragged`s or arrays [batch, time, features].
            reverse: Whether each sequence runs from its own last step.
        """
        recurrence, _ = self.on_onednn("float32")
        float32_layer = self.in_dtype("float32")
        sample_sequences(samples, self.inputs)
        pairs = [
            tuple(np.asarray(getattr(result, "values", result), np.float32) for result in both)
            for both in (
                (low(sample, reverse=reverse, cell="none")[0] for low in (self, float32_layer))
                for sample in samples
            )
        ]
        step = recurrence.calibration.step if recurrence.calibration else float(eps(recurrence.dtype))
        return compared(recurrence.dtype, step, [(low, right) for low, right in pairs])


def check_calibration(calibration: Any) -> None:
    """Raises `InputError` if the user's calibration= is neither a `Calibration` nor None."""
    if calibration is not None:
        instance(calibration, Calibration, "calibration is a Calibration, as calibrate makes it from samples")


def eps(dtype: str) -> Any:
    """Returns the distance from 1 to the next number of a floating dtype, its precision."""
    finfo: Any = ml_dtypes.finfo
    return finfo(dtype).eps


def directed(recurrence: OneDnnRecurrence, reverse: bool) -> OneDnnRecurrence:
    """Returns the recurrence set to run from each sequence's last step if `reverse`. A cell that oneDNN only
    runs forward stays as it is: `Arguments` reverses the order of its steps instead.
    """
    return (
        replace(recurrence, direction="right2left")
        if reverse and not recurrence.row.one_direction
        else recurrence
    )


def layer(
    arrays: Mapping[str, Any],
    layout: str,
    *,
    semantics: Mapping[str, Any] | None = None,
    dtype: str | None = None,
    calibration: Calibration | None = None,
    path: str | None = None,
) -> Layer:
    """Makes a recurrence on oneDNN from weights in any layout.

    A function that oneDNN does not have, such as other activations, runs on the engine llvm, in float32.
    `Layer.engine` says which runs, and `Layer.reason` why. The weights are copied.

    Args:
        arrays: Arrays by the framework's own names, of one layer and direction; see `stepnet.convert`.
        layout: The name of their layout, such as "torch.gru" or "paddle.fusion_gru".
        semantics: Values for the settings that the layout does not fix, by field of `Semantics`.
        dtype: float32, bfloat16, float16, or int8 with a calibration; by default the dtype of the arrays.
        calibration: The scales of int8; `Layer.calibrate` makes them from samples.
        path: The library; by default the one of STEPNET_ONEDNN, or the one that is installed.

    Raises:
        LayoutError: For arrays that do not fit the layout, and for settings without a value.
        InputError: For float64 weights: oneDNN computes in float32 and less.
        LibraryError: Without oneDNN.
        RefusedError: For a dtype that this recurrence or this processor does not have.
    """
    loaded = library(path)
    check_calibration(calibration)
    given_semantics = dict(mapping({} if semantics is None else semantics, "semantics are values by field"))
    copies = {name: np.array(array) for name, array in as_arrays(arrays).items()}
    source = LayerWeights(copies, layout, given_semantics)
    for name, array in copies.items():
        check_float(array, name)
    source_dtype = one_dtype(copies).name
    converted_weights, reason = converted(source)
    record = registry.record(layout)
    sizes = sizes_of(record, {name: array.shape for name, array in copies.items()}, None)
    if (sizes.layers, sizes.directions) != (1, 1):
        raise InputError("a layer on oneDNN is of one layer and direction; make one for each")
    states = (sizes.output, sizes.hidden)[: 1 + (record.cell == "lstm")]
    if converted_weights is None:
        new_layer = Layer(source, loaded, sizes.inputs, states, None, None, "", reason, np.dtype("float32"))
        return new_layer if dtype in (None, "float32") else new_layer.in_dtype(dtype, calibration)
    recurrence, weights, onednn_layout = converted_weights
    result = np.dtype(source_dtype if dtype is None else "float32")
    new_layer = Layer(source, loaded, sizes.inputs, states, recurrence, weights, onednn_layout, None, result)
    target_dtype = dtype or source_dtype
    return (
        new_layer
        if target_dtype == "float32" and calibration is None
        else new_layer.in_dtype(target_dtype, calibration)
    )
