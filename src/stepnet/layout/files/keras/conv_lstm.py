"""Keras' ConvLSTM1D and ConvLSTM2D: an LSTM whose products are convolutions over features of each step.

    x [sequences, steps, rows, channels]   -->   h [sequences, steps, rows, filters]

The convolution of the inputs runs ahead of the recurrence; the convolution of the memory is a product of its
windows.
"""

from collections.abc import Callable
from itertools import product
from math import prod
from typing import Any

import numpy as np

from stepnet.compiler.values.records import dataclass
from stepnet.errors import ModelError
from stepnet.importers.axes import Axis, is_feature, is_time, text_of
from stepnet.importers.grids import convolve_grid
from stepnet.importers.placed import Placed
from stepnet.importers.pointwise import OPERATORS
from stepnet.layout.files.keras.activations import FUNCTIONS, SLOPES
from stepnet.layout.files.keras.call import KerasCall
from stepnet.layout.files.keras.windows import windows_of, zeros_of
from stepnet.model.nested import reduce as over_steps
from stepnet.model.recurrence import RNN


@dataclass(frozen=True)
class ConvLstmStep:
    """Step of a ConvLSTM. Its input has the convolved inputs of the gates i, f, g, o side by side. sizes: the
    sizes of the kernel. gate, bend: the functions of the gates and of the candidate.
    """

    sizes: tuple[int, ...]
    gate: Callable[[Any], Any]
    bend: Callable[[Any], Any]

    @property
    def __name__(self) -> str:
        """Name of the step, which messages about the recurrence show."""
        return "conv_lstm"

    def __call__(self, x: Any, memory: Any, params: Any) -> tuple[Any, Any]:
        """Computes a step; returns (output, memory after the step). x: [rows, places ..., 4 x filters].
        params: the matrix [sizes x filters, 4 x filters] of the memory's windows.
        """
        gates = x + self.windows(memory["h"]) @ params
        i, f, g, o = np.split(gates, 4, axis=-1)
        c = self.gate(f) * memory["c"] + self.gate(i) * self.bend(g)
        h = self.gate(o) * self.bend(c)
        return h, {"h": h, "c": c}

    def windows(self, h: Any) -> Any:
        """Returns the windows [rows, places ..., sizes x filters] that the kernel reads of a state [rows,
        places ..., filters]: the numbers around each place, zeros beyond the ends. Places are the axes that
        the kernel goes over, such as the rows and columns of an image.
        """
        places = h.shape[1:-1]
        for axis, size in enumerate(self.sizes, 1):
            before = (size - 1) // 2
            ends = [h[self.part(axis, slice(0, 1))] * 0] * (size - 1)
            h = np.concatenate([*ends[:before], h, *ends[before:]], axis=axis) if ends else h
        starts = product(*(range(size) for size in self.sizes))
        parts = [
            h[(slice(None), *(slice(at, at + count) for at, count in zip(each, places, strict=True)))]
            for each in starts
        ]
        return np.concatenate(parts, axis=-1)

    def part(self, axis: int, chosen: slice) -> tuple[slice, ...]:
        """Returns the index of a part along one axis."""
        return (*[slice(None)] * axis, chosen)


def conv_lstm(places: int) -> Callable[[KerasCall], list[Placed]]:
    """Makes the rule of ConvLSTM1D and ConvLSTM2D. places: the number of axes that their kernels go over."""

    def rule(call: KerasCall) -> list[Placed]:
        """Runs a ConvLSTM layer over the steps of each sequence, from states of zeros; returns its outputs,
        and its final states if it returns these.
        """
        x = checked(call, places)
        sizes, (filters,) = tuple(call.wholes("kernel_size", places)), call.wholes("filters", 1)
        shapes = {
            "kernel": (*sizes, x.sizes[-1], 4 * filters),
            "recurrent_kernel": (*sizes, filters, 4 * filters),
        }
        biased = call.setting("use_bias", True)
        kernel, own, *bias = call.arrays({**shapes, "bias": (4 * filters,)} if biased else shapes)
        first, second, *others = x.axes
        each = x.shaped(((*first, *second), *others))
        windows = windows_of(call, sizes, [1] * places, zeros_of(each))
        made = convolve_grid(each, kernel, bias[0] if bias else None, windows)
        made = made.shaped((first, second, *made.axes[1:]))
        step = ConvLstmStep(
            sizes, function(call, "recurrent_activation", "sigmoid"), function(call, "activation", "tanh")
        )
        shape = (*made.features[:-1], filters)
        rnn = RNN(step, own.reshape(prod(sizes) * filters, -1), memory={"h": shape, "c": shape})
        outputs, final = rnn(made.value)
        axes: tuple[Axis, ...] = tuple((size,) for size in shape)
        every = bool(call.setting("return_sequences", False))
        result = outputs if every else over_steps(outputs, "last")
        states = [final["h"], final["c"]] if call.setting("return_state", False) else []
        return [
            x.with_value(result, (first, second, *axes) if every else (first, *axes)),
            *(x.with_value(state, (first, *axes)) for state in states),
        ]

    return rule


def checked(call: KerasCall, places: int) -> Placed:
    """Returns the operand [sequences, steps, places ..., channels] of a ConvLSTM; raises `ModelError` for
    other axes, for a mask or states that it begins with, and for settings that are not supported.
    """
    for name, usual in (("data_format", "channels_last"), ("go_backwards", False), ("stateful", False)):
        call.only(name, usual, None)
    x = call.x
    if call.mask is not None:
        raise ModelError("it takes a mask, which is not supported")
    if len(x.axes) != places + 3 or not is_time(x.axes[1]) or not all(map(is_feature, x.axes[2:])):
        raise ModelError(f"it runs over {text_of(x.axes)}, and should over [sequences, steps, ..., features]")
    return x


def function(call: KerasCall, name: str, usual: str) -> Callable[[Any], Any]:
    """Returns the function that a setting of the layer names as an activation. usual: the name if the file
    does not have the setting. Raises `ModelError` for an unknown activation.
    """
    stated = call.setting(name, usual)
    if stated == "hard_sigmoid":
        return lambda x: OPERATORS[stated].function(x, SLOPES[call.version], 0.5)
    if stated not in FUNCTIONS:
        raise ModelError(f"its {name} {stated!r} is not supported")
    operator, numbers = FUNCTIONS[stated]
    return lambda x: OPERATORS[operator].function(x, *numbers)
