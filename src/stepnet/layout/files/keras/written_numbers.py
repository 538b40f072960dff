"""Numbers in a Keras model that its author may have computed from the number of steps of its input; see
`importers.example_steps`.

    x / 3.605551, of keras.ops     [3.605551]
    x[:, 7:]                       [7]            over steps: it may leave the last six
    Cropping1D((7, 0))             [7]            likewise
    Rescaling(0.0039)              []             a setting of a layer

Settings of layers are the author's, but for those that say how many steps there are, as windows of all steps.
"""

from collections.abc import Sequence
from functools import partial

from stepnet.importers.axes import Axes, is_time
from stepnet.importers.example_steps import NumberRules, of_ends, of_slices, stated_steps, written
from stepnet.importers.placed import Placed
from stepnet.layout.files.keras.call import KerasCall
from stepnet.layout.files.keras.operations import indices_of, slice_of, widths
from stepnet.layout.files.keras.windows import pairs


def of_index(call: KerasCall, axes: Axes) -> list[float]:
    """Returns the numbers in an index of steps."""
    x, own = call.x, [*enumerate(indices_of(call))]
    slices = [(axis, *slice_of(index)) for axis, index in own if type(index) is not int]
    single = [index for axis, index in own if type(index) is int and is_time(x.axes[axis])]
    return [*of_slices(x, slices, stated_steps(x)), *written(single)]


def of_pairs(name: str, call: KerasCall) -> list[float]:
    """Returns the numbers of steps that a layer adds or leaves out at both ends. name: of the setting."""
    own = enumerate(pairs(call, name), 1)
    return of_ends(call.x, [(axis, before, after) for axis, (before, after) in own])


def windows_of(name: str, places: int, call: KerasCall) -> list[tuple[int, int]]:
    """Returns the axes of a layer's windows, `places` of them, and their sizes, from the setting `name`."""
    return [*enumerate(call.wholes(name, places, 2), 1)]


WINDOWED = {
    f"{kind}{places}D": partial(windows_of, name, places)
    for kind, name in (
        ("AveragePooling", "pool_size"),
        ("MaxPooling", "pool_size"),
        ("Conv", "kernel_size"),
        ("SeparableConv", "kernel_size"),
        ("DepthwiseConv", "kernel_size"),
    )
    for places in (1, 2)
}
"""The windows of each layer that has them."""
NUMBERS = NumberRules[KerasCall](
    windows=WINDOWED,
    attributes={
        "RepeatVector": ("n",),
        "ops.Clip": ("x_min", "x_max"),
        "ops.Repeat": ("repeats",),
    },
    copies={"UpSampling1D", "UpSampling2D"},
    reshapes={"Reshape", "ops.Reshape"},
    powers={"ops.Power"},
    rules={
        **dict.fromkeys(("Cropping1D", "Cropping2D"), lambda call, axes: of_pairs("cropping", call)),
        **dict.fromkeys(("ZeroPadding1D", "ZeroPadding2D"), lambda call, axes: of_pairs("padding", call)),
        "ops.GetItem": of_index,
        "ops.Pad": lambda call, axes: of_ends(call.operands[0], widths(call)),
    },
)


def numbers_of(row: str, call: KerasCall, results: Sequence[Placed]) -> list[float]:
    """Returns the numbers in a call of a layer or operation that may have been computed from the number of
    steps. row: its name in the table of operators. results: the results of the call.
    """
    return NUMBERS.numbers(row, call, call.operands, call.config, results)
