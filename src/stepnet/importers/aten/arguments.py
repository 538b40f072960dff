"""The names of the arguments of ATen operations whose rules take them by position.

A file states each argument with its name. Rules on axes read them by name; the others would not notice an
argument that lies in another's place in a damaged file.
"""

from collections.abc import Mapping

BY_NAMES: Mapping[str, str] = {
    "self other alpha": "add.Tensor add.Scalar sub.Tensor sub.Scalar rsub.Tensor rsub.Scalar",
    "self other": (
        "mul.Tensor mul.Scalar div.Tensor div.Scalar div.Tensor_mode remainder.Tensor remainder.Scalar "
        "remainder.Scalar_Tensor fmod.Tensor fmod.Scalar minimum.default maximum.default "
        "eq.Tensor eq.Scalar ne.Tensor ne.Scalar "
        "lt.Tensor lt.Scalar le.Tensor le.Scalar gt.Tensor gt.Scalar ge.Tensor ge.Scalar "
        "logical_and.default logical_or.default logical_xor.default bitwise_and.Tensor bitwise_and.Scalar "
        "bitwise_or.Tensor bitwise_or.Scalar bitwise_xor.Tensor bitwise_xor.Scalar type_as.default"
    ),
    "self other non_blocking copy memory_format": "to.other",
    "self exponent": "pow.Tensor_Scalar pow.Scalar",
    "self negative_slope": "leaky_relu.default",
    "self alpha scale input_scale": "elu.default",
    "self min_val max_val": "hardtanh.default",
    "self min": "clamp_min.default",
    "self max": "clamp_max.default",
    "self min max": "clamp.default clamp.Tensor",
    "self beta threshold": "softplus.default",
    "condition self other": "where.self where.ScalarSelf where.ScalarOther where.Scalar",
    "self mask value": "masked_fill.Scalar masked_fill.Tensor",
    "self dim keepdim": "max.dim min.dim argmax.default argmin.default prod.dim_int",
    "self dim": "cumprod.default var.correction var_mean.correction",
    "self ord dim keepdim": "linalg_vector_norm.default",
    "input normalized_shape weight bias eps": "native_layer_norm.default",
    "input normalized_shape weight bias eps cudnn_enable": "layer_norm.default",
    "self dim index": "select.int index_select.default gather.default",
    "self dim start end step": "slice.Tensor",
    "self src dim start end step": "slice_scatter.default",
    "self split_sizes dim": "split_with_sizes.default",
    "self shifts dims": "roll.default",
    "self dims": "flip.default",
    "self indices": "index.Tensor",
    "weight indices padding_idx scale_grad_by_freq sparse": "embedding.default",
    "self src non_blocking": "copy.default",
    "self fill_value": "full_like.default",
    "size fill_value": "full.default",
    "size": "empty.memory_format",
    "size physical_layout": "empty_permuted.default",
    "s": "scalar_tensor.default",
    "n": "eye.default",
    "n m": "eye.m",
    "start end step": "arange.start_step",
    "self dtype non_blocking copy memory_format": "to.dtype",
    "self device dtype non_blocking copy memory_format": "to.device",
}
"""Operations by the names of their arguments, in the order of PyTorch's schemas. Others have one, `self`."""

NAMES: Mapping[str, tuple[str, ...]] = {
    operation: tuple(names.split())
    for names, operations in BY_NAMES.items()
    for operation in operations.split()
}


def misplaced(operation: str, names: tuple[str, ...]) -> str:
    """Returns the names of the arguments that an operation of PyTorch takes by position, as text for a
    message, if the file gives other arguments by position; else "".

    operation: the name of the operation; those that take only `self` by position need not be listed. names:
    the arguments that the file gives by position.
    """
    expected = NAMES.get(operation, ("self",))
    return "" if names == expected[: len(names)] else ", ".join(expected)
