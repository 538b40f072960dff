"""Keras' classes: a map from their names to the operators of `importers`, one row per class.

    Multiply          -->   multiply, from left to right
    ELU alpha=1.0     -->   elu, with the setting as its number
    Dense units=3     -->   a product with the array "kernel", a sum, and the activation

A row of an elementwise operator names a row of the table in `importers/pointwise.py`. Any other row has a
rule that reads the settings and arrays of a layer, and calls functions of `importers`, which know no format.
Recurrent layers are no rows: `modules.py` reads them, and `whole.py` runs them.

Sources: keras/src/layers/ and keras/src/ops/ of 3.15; tf_keras 2.21.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod

import numpy as np

from stepnet.compiler.net.windows import LARGEST, Lengths, derived_axis
from stepnet.errors import ModelError
from stepnet.importers import pointwise, reductions, selecting, shaping
from stepnet.importers.axes import TIME, features_of, is_time, stated_number, text_of, time_of
from stepnet.importers.convolving import join_steps, repeated, split_steps, steps_as_feature
from stepnet.importers.placed import Placed, constant
from stepnet.importers.products import matmul
from stepnet.importers.sizes import STEPS, product
from stepnet.layout.files.keras import normalising, windows
from stepnet.layout.files.keras.activations import ACTIVATION_LAYERS, activated, prelu
from stepnet.layout.files.keras.attention import (
    additive_attention,
    attention,
    grouped_query_attention,
    multi_head_attention,
)
from stepnet.layout.files.keras.call import KerasCall, Rule
from stepnet.layout.files.keras.einsum import einsum_dense
from stepnet.layout.files.keras.names import GROUPED, LOOKED_THROUGH
from stepnet.layout.files.keras.nodes import Config, class_of, rows, table
from stepnet.layout.files.keras.operations import OPERATIONS
from stepnet.layout.files.keras.rules import (
    concatenate,
    folded,
    global_pooling,
    pair,
    per_feature,
    same,
    steps_that_differ,
    with_bias,
    zero_like,
)


def dense(call: KerasCall) -> Placed:
    """Computes the result of Keras' Dense: a product with the kernel, perhaps a bias, and the activation.

    Its operand may have the steps as its last axis if the file states their number.
    """
    last = len(call.x.axes) - 1
    if is_time(call.x.axes[last]):
        first = shaping.transpose(call.x, [0, last, *range(1, last)])
        turned = shaping.transpose(steps_as_feature(first, 1), [0, *range(2, last + 1), 1])
        call = replace(call, operands=(turned,))
    (units,) = call.wholes("units", 1)
    (kernel,), bias = with_bias(call, {"kernel": (call.width(), units)}, units)
    result = matmul(call.x, constant(kernel), padded=False)
    return activated(call, result if bias is None else pointwise.elementwise("add", result, constant(bias)))


def embedding(call: KerasCall) -> Placed:
    """Computes the result of Keras' Embedding: rows of "embeddings" at the operand's whole numbers."""
    shape = (*call.wholes("input_dim", 1), *call.wholes("output_dim", 1))
    x, (rows_of_table,) = call.x, call.arrays({"embeddings": shape})
    whole = pointwise.dtype_of(x).kind in "iu"
    return selecting.take_computed(constant(rows_of_table), x if whole else pointwise.cast(x, "int64"))


def global_mean(call: KerasCall) -> Placed:
    """Computes the result of Keras' GlobalAveragePooling1D: the mean of all steps, or of the steps that a
    mask leaves; NaN where it leaves none. Raises `ModelError` for a mask that does not fit the operand.
    """
    if call.mask is None:
        return global_pooling("mean")(call)
    call.only("data_format", "channels_last", None)
    if len(call.x.axes) != 3 or call.mask.axes != call.x.axes[:2]:
        raise ModelError("its mask has other axes than its operand")
    keep, counted = bool(call.setting("keepdims", False)), per_feature(call.mask)
    x = pointwise.where(counted, call.x, zero_like(call.x))
    counts = pointwise.cast(counted, pointwise.dtype_of(x).name)
    sums = [reductions.reduce(value, [1], "sum", keep) for value in (x, counts)]
    return pointwise.elementwise("divide", *sums)


def multiply(call: KerasCall) -> Placed:
    """Computes the result of Keras' Multiply. In Keras 3, a factor is 1 at the steps where its mask is False,
    and the product 0 where the masks of all factors are.
    """
    if call.version == "2" or not any(call.masks):
        return pointwise.folded("multiply", call.several)
    masks = [None if mask is None else per_feature(mask) for mask in call.masks]
    one = constant(np.ones((), pointwise.dtype_of(call.several[0])))
    factors = [
        x if mask is None else pointwise.where(mask, x, one)
        for x, mask in zip(call.several, masks, strict=True)
    ]
    counted = [mask for mask in masks if mask is not None]
    made = pointwise.folded("multiply", factors)
    if len(counted) < len(masks):
        return made
    return pointwise.where(pointwise.folded("logical_or", counted), made, zero_like(made))


def extreme(operator: str) -> Rule:
    """Makes the rule of Maximum and Minimum. operator: its name in `importers.pointwise`."""

    def rule(call: KerasCall) -> Placed:
        """Computes the elementwise maximum or minimum of all operands, from left to right. In Keras 3, at a
        step where the mask of one operand is False, the result is the other operand.
        """
        first, *others = call.several
        masks = [None] * len(call.operands) if call.version == "2" else call.masks
        mask, *masks = [None if each is None else per_feature(each) for each in masks]
        for x, own in zip(others, masks, strict=True):
            other = x if own is None else pointwise.where(own, x, first)
            first = first if mask is None else pointwise.where(mask, first, other)
            both = [each for each in (mask, own) if each is not None]
            mask = pointwise.folded("logical_or", both) if len(both) == 2 else None
            first = pointwise.elementwise(operator, first, other)
        return first

    return rule


def masking(call: KerasCall) -> Placed:
    """Computes the result of Keras' Masking: its operand, with zeros at the steps that it masks."""
    return pointwise.where(per_feature(steps_that_differ(call)), call.x, zero_like(call.x))


def repeat_vector(call: KerasCall) -> Placed:
    """Computes the result of Keras' RepeatVector, which repeats a vector n times.

    A vector per sequence [sequences, features] becomes a sequence of n steps [sequences, n, features]; a
    sequence without steps in the inputs gets none here either. An n that is the number of steps of the file
    stands for the steps of the sequence. One number per step [sequences, steps] becomes [sequences, n,
    steps], with n as an axis of features. Raises `ModelError` for other operands.
    """
    (count,) = call.wholes("n", 1)
    if not 0 < count <= LARGEST:
        raise ModelError(f"its n is {count}")
    if time_of(call.x.axes) and len(call.x.axes) == 2:
        return repeated(shaping.unsqueeze(call.x, [1]), 1, count)
    if call.x.letters != "N_":
        raise ModelError(f"it repeats {text_of(call.x.axes)}, which is no vector per sequence")
    one = derived_axis(STEPS, Lengths(0, LARGEST))
    axis = TIME if count == call.steps else (derived_axis(one, Lengths(0, count, multiplies=True)),)
    return shaping.broadcast_to(shaping.unsqueeze(call.x, [1]), (call.x.axes[0], axis, call.x.axes[1]))


def dot(call: KerasCall) -> Placed:
    """Computes the result of Keras' Dot: products of two operands, summed along one axis of each, which the
    setting "axes" states; with the setting "normalize", of vectors of length 1 along these axes. Raises
    `ModelError` for sums over the sequences, and for more than three axes.
    """
    if len(call.operands) != 2:
        raise ModelError(f"it is called on {len(call.operands)} tensors, where two are expected")
    axes = [x.axis(axis) for x, axis in zip(call.operands, call.wholes("axes", 2), strict=True)]
    if 0 in axes:
        raise ModelError("it goes over the sequences, which mixes them")
    a, b = call.operands
    if call.setting("normalize", False):
        a, b = (
            normalising.of_length_one(x, [axis], normalising.LEAST)
            for x, axis in zip((a, b), axes, strict=True)
        )
    if max(len(a.axes), len(b.axes)) > 3:
        raise ModelError(f"it is called on {text_of(a.axes)} and {text_of(b.axes)}: at most 3 axes each")
    row, column = len(a.axes) == 2, len(b.axes) == 2
    a = shaping.unsqueeze(a, [1]) if row else a if axes[0] == 2 else shaping.swapped(a)
    b = shaping.unsqueeze(b, [2]) if column else b if axes[1] == 1 else shaping.swapped(b)
    made = matmul(a, b, padded=False)
    return shaping.squeeze(made, [1]) if row else shaping.squeeze(made, [2]) if column else made


def reshape(call: KerasCall) -> Placed:
    """Computes the result of Keras' Reshape, which gives the axes after the first another shape. Several
    steps may become one step with more features, or one step several.
    """
    target = call.wholes("target_shape", max(1, len(rows(call.config.get("target_shape")))))
    return regrouped_steps(call.x, target) or shaping.reshape(call.x, [call.x.sizes[0], *target])


def regrouped_steps(x: Placed, target: Sequence[int]) -> Placed | None:
    """Reshapes a value [sequences, steps, ...] to [sequences, -1, ...] with other numbers of features at each
    step; None for another operand or target.
    """
    if len(x.axes) < 2 or not is_time(x.axes[1]) or target[0] != -1 or min(target[1:], default=0) < 1:
        return None
    before, after = prod(x.features), prod(target[1:])
    axes = tuple((size,) for size in target[1:])
    if after > before and not after % before:
        joined = join_steps(x, after // before)
        return joined.shaped((*joined.axes[:2], *axes))
    if before > after and not before % after:
        return split_steps(x.shaped((*x.axes[:2], (before // after,), *axes)), 1)
    return None


def flatten(call: KerasCall) -> Placed:
    """Computes the result of Keras' Flatten: all axes after the first joined to one. Steps with several
    features can be joined only if the file states their number; then each step is a feature.
    """
    call.only("data_format", "channels_last", None)
    x = call.x
    time = time_of(x.axes)
    if time and prod(features_of(x.axes)) > 1 and stated_number(str(time[0]), dict(x.stated)):
        x = steps_as_feature(x, x.axes.index(time))
    return shaping.reshape(x, [x.sizes[0], product(x.sizes[1:])])


KERAS: Mapping[str, Rule] = {
    **dict.fromkeys(LOOKED_THROUGH, same),
    "Activation": lambda call: activated(call, call.x),
    "AdaptiveAveragePooling1D": windows.adaptive_pooling(1, "mean"),
    "AdaptiveAveragePooling2D": windows.adaptive_pooling(2, "mean"),
    "AdaptiveMaxPooling1D": windows.adaptive_pooling(1, "max"),
    "AdaptiveMaxPooling2D": windows.adaptive_pooling(2, "max"),
    "Add": folded("add"),
    "AdditiveAttention": additive_attention,
    "Attention": attention,
    "Average": lambda call: pointwise.mean(*call.several),
    "AveragePooling1D": windows.pooling(1, "mean"),
    "AveragePooling2D": windows.pooling(2, "mean"),
    "BatchNormalization": normalising.batch_norm,
    "Concatenate": concatenate,
    "Conv1D": windows.convolution(1),
    "Conv1DTranspose": windows.convolution_transposed,
    "Conv2D": windows.convolution(2),
    "Cropping1D": windows.cropped,
    "Cropping2D": windows.cropped,
    "Dense": dense,
    "DepthwiseConv1D": windows.depthwise(1),
    "DepthwiseConv2D": windows.depthwise(2),
    "Dot": dot,
    "EinsumDense": lambda call: activated(call, einsum_dense(call)),
    "Embedding": embedding,
    "Flatten": flatten,
    "GlobalAveragePooling1D": global_mean,
    "GlobalAveragePooling2D": global_pooling("mean"),
    "GlobalMaxPooling1D": global_pooling("max"),
    "GlobalMaxPooling2D": global_pooling("max"),
    "GroupNormalization": normalising.group_norm,
    **dict.fromkeys(GROUPED, grouped_query_attention),
    "LayerNormalization": normalising.layer_norm,
    "Masking": masking,
    "MaxPooling1D": windows.pooling(1, "max"),
    "MaxPooling2D": windows.pooling(2, "max"),
    "Maximum": extreme("maximum"),
    "Minimum": extreme("minimum"),
    "MultiHeadAttention": multi_head_attention,
    "Multiply": multiply,
    "Normalization": normalising.normalization,
    "PReLU": prelu,
    "Permute": lambda call: shaping.transpose(call.x, [0, *call.wholes("dims", len(call.x.axes) - 1)]),
    "RMSNormalization": normalising.rms_norm,
    "RepeatVector": repeat_vector,
    "Rescaling": normalising.rescaling,
    "Reshape": reshape,
    "SeparableConv1D": windows.separable(1),
    "SeparableConv2D": windows.separable(2),
    "Subtract": pair("subtract"),
    "UnitNormalization": normalising.unit_norm,
    "UpSampling1D": windows.repeated_steps(1),
    "UpSampling2D": windows.repeated_steps(2),
    "ZeroPadding1D": windows.zeros_around,
    "ZeroPadding2D": windows.zeros_around,
    **ACTIVATION_LAYERS,
    **OPERATIONS,
}
"""The rule of each supported class of Keras' layers and, with ops. ahead of the name, of its operations."""
READS_ZEROS = {f"{kind}Conv{axes}D" for kind in ("", "Depthwise", "Separable") for axes in (1, 2)}
"""The classes that read steps of zeros as they are."""
ON_FEATURES = {
    *LOOKED_THROUGH,
    *("Activation", "Dense", "ELU", "LayerNormalization", "LeakyReLU", "ReLU", "Rescaling"),
}
"""The classes that compute with the last axis alone, so that a TimeDistributed of one is the same."""


def row_of(node: Config) -> str:
    """Returns the name by which the table of operators has a layer, such as "Dense", or an operation, such as
    "ops.Add", from its configuration.

    >>> row_of({"class_name": "Add", "module": "keras.layers"})
    'Add'
    >>> row_of({"class_name": "Add", "module": "keras.src.ops.numpy", "registered_name": "Add"})
    'ops.Add'
    """
    parts = str(node.get("module") or "").split(".")
    calls, layer = rows(node.get("inbound_nodes")), {"trainable", "dtype"} & table(node.get("config")).keys()
    is_bare = not node.get("module") and not layer and bool(table(calls[0] if calls else None))
    is_operation = (parts[0] == "keras" and "ops" in parts) or is_bare
    return f"ops.{class_of(node)}" if is_operation else class_of(node)
