"""Attention of the steps of each sequence to those of the same or another one, in models of whole sequences.

    q, k [heads, size]  --scores-->  products at pairs [heads]  --exp, mix with v-->  [heads, size]

A pair of steps stores one number per head, its weight, and no features.
"""

from math import isfinite, sqrt
from typing import Any

import numpy as np

from stepnet.compiler.net.pairs import is_causal
from stepnet.compiler.net.types import STEPS, Extent
from stepnet.compiler.trace.lines import refuse
from stepnet.compiler.trace.traced import Traced, apply, reshaped
from stepnet.compiler.values.arguments import flag, number, short_repr
from stepnet.errors import InputError
from stepnet.model.convolution import model_of, positive
from stepnet.model.nested import expand, reduce


def attention(
    q: Any,
    k: Any,
    v: Any,
    *,
    heads: int = 1,
    causal: bool = False,
    scale: float | None = None,
    mask: Any = None,
) -> Traced:
    """Computes scaled dot-product attention: at each step of q a mean of the steps of v of the same sequence.

    The weights of the mean are the softmax of the products of q with the steps of k. This is what PyTorch's
    `torch.nn.functional.scaled_dot_product_attention` computes for a sequence that is alone.

    A. Vaswani and others, "Attention is all you need", 2017 (arXiv 1706.03762).

    Args:
        q: Sequences of a `Graph` model: the queries, with features [heads * size] at each step, or
            [heads, size].
        k: The keys, with the features of q. They may have other steps than q, such as those of a static
            sequence. With two axes of features they may have fewer heads: each is for as many heads of q.
        v: The values, with the steps of k, and features [heads * any size], or [heads of k, any size].
        heads: The number of heads into which features with one axis are divided.
        causal: Whether a step attends only to the steps up to its own index.
        scale: The factor of the products; 1 / sqrt(size) by default.
        mask: A bool at each step of k: False for steps that no query attends to. None for none.

    Returns:
        Sequences with the steps of q, and the features of v; [heads, size] where these have two axes. Zeros
        where a query has no keys.

    Raises:
        StepError: For values that are no sequences of a model, as in a step of a recurrence, and for shapes
            and settings that do not fit.

    >>> import numpy as np
    >>> import stepnet as sn
    >>> sequences = sn.Ragged.from_list([np.float32([[0], [0], [0]]), np.float32([[4]])])
    >>> positions = sn.Ragged.from_list([np.float32([[1], [2], [3]]), np.float32([[4]])])
    >>> model = sn.Graph(lambda x, _: sn.attention(x[0], x[0], x[1], causal=True))
    >>> model((sequences, positions)).to_list()
    [array([[1. ],
           [1.5],
           [2. ]], dtype=float32), array([[4.]], dtype=float32)]
    """
    builder = model_of(q, "attention")
    check_sequences(builder, {"q": q, "k": k, "v": v})
    heads, is_flat = positive(heads, "heads"), len(v.type.shape) == 1
    query, key, value = (headed(x, heads, name) for x, name in ((q, "q"), (k, "k"), (v, "v")))
    count, size = query.type.shape
    key, value = (grouped(x, count, name) for x, name in ((key, "k"), (value, "v")))
    query = query * factor_of(scale, size)
    products = apply("scores", query, key, causal=flag_of(causal))
    made = mean_of(products, value, None if mask is None else mask_at(products, k, mask))
    return reshaped(made, (made.type.size,)) if is_flat else made


def check_sequences(builder: Any, sequences: dict[str, Any]) -> None:
    """Raises `StepError` unless all operands, by argument names, are sequences of one model."""
    for name, x in sequences.items():
        if not isinstance(x, Traced) or x.builder is not builder or len(x.type.extent) != len(STEPS):
            what = kind_of(x) if isinstance(x, Traced) and x.builder is builder else short_repr(x)
            raise refuse(
                f"attention takes sequences of a model, which sn.Graph runs; {name} is {what}, and not a "
                "value at each step"
            )


def kind_of(x: Traced) -> str:
    """Describes a value that is no sequence of steps, for messages."""
    kinds = "a parameter", "a value of each sequence, which sn.expand repeats at its steps"
    inner = "a value at each step of inner sequences, of which there is no attention: sn.reduce them first"
    return kinds[len(x.type.extent)] if len(x.type.extent) < len(kinds) else inner


def factor_of(scale: Any, size: int) -> float:
    """Returns the factor by which attention scales the products of queries and keys of `size` features:
    `scale`, or 1 / sqrt(size) if that is None; raises `StepError` for a scale that is no number.
    """
    if scale is None:
        return 1 / sqrt(max(size, 1))
    try:
        return number(scale, "scale is a number, or None for 1 / sqrt(size)", isfinite)
    except InputError as error:
        raise refuse(str(error)) from None


def flag_of(causal: Any) -> bool:
    """Returns whether attention is causal; raises `StepError` for a value that is no bool."""
    try:
        return flag(causal, "causal")
    except InputError as error:
        raise refuse(str(error)) from None


def headed(x: Traced, heads: int, name: str) -> Traced:
    """Returns a value with features [heads, size], of [heads * size] or as they are; raises `StepError` for
    others. name: the name of the argument.
    """
    if len(x.type.shape) == 2:
        return x
    if len(x.type.shape) != 1 or x.type.size % heads:
        raise refuse(
            f"{name} has features [heads * size] or [heads, size], not {x.type.element} for {heads} heads"
        )
    return reshaped(x, (heads, x.type.size // heads))


def grouped(x: Traced, heads: int, name: str) -> Traced:
    """Returns keys or values with as many heads as the queries: fewer heads are each repeated for several
    heads of the queries. Raises `StepError` if the numbers do not divide. name: the argument's.
    """
    own = x.type.shape[0]
    if own == heads or not own:
        return x
    if heads % own:
        raise refuse(f"{name} has {own} heads, which {heads} heads of q are no multiple of")
    return apply("take", x, axis=-2, indices=tuple(np.repeat(np.arange(own), heads // own).tolist()))


def mask_at(products: Traced, keys: Traced, mask: Any) -> Traced:
    """Returns the mask at each pair of a query and a key: the bool of the key. products: the products of
    queries and keys, one at each of these pairs. Raises `StepError` unless the mask is a bool at each key.
    """
    if not isinstance(mask, Traced) or mask.type.element != "bool[]" or mask.type.extent != keys.type.extent:
        raise refuse("the mask of an attention is a bool at each step of k")
    return apply("not_equal", spread(reshaped(mask, (1,)).astype(products.dtype), products.type.extent), 0)


def spread(values: Traced, extent: Extent) -> Traced:
    """Returns floating-point values that each key has, repeated at each pair of a query and this key. extent:
    the axes of the pairs, such as rows/steps/steps*: sequences, their queries, and their keys (*).
    """
    builder = values.builder
    ones = Traced(builder, builder.constant(np.ones((*values.type.shape, 1), values.dtype)))
    queries = apply("expand", ones, extent=extent[:-1])
    return apply("scores", queries, reshaped(values, ones.type.shape), causal=is_causal(extent))


def mean_of(products: Traced, values: Traced, mask: Traced | None) -> Traced:
    """Returns the mean of values at keys [heads, size] by the softmax of products at pairs [heads], for each
    query; zeros where it has no keys, or `mask`, a bool at each pair [1], is False for all of them.
    """
    if mask is not None:
        lowest = np.asarray(np.finfo(products.dtype).min, products.dtype)
        products = apply("where", mask, products, lowest)
    largest = apply("detach", reduce(products, "max"))
    weights = np.exp(products - expand(largest, products))
    if mask is not None:
        weights = apply("where", mask, weights, np.zeros((), weights.dtype))
    total = reduce(weights, "sum")
    total = apply("where", apply("equal", total, 0), np.ones((), total.dtype), total)
    return apply("mix", weights, values, over="keys") / reshaped(total, (*total.type.shape, 1))
