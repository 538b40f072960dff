"""A GRU with attention: one number per step determines how much of the update gate keeps the memory."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from stepnet.errors import InputError, RefusedError
from stepnet.onednn.layer import Layer, layer

ATTENDED = {"gru": "augru", "lbr_gru": "lbr_augru"}
"""For each GRU of oneDNN, the same cell with attention."""


def augru(
    arrays: Mapping[str, Any],
    layout: str,
    *,
    semantics: Mapping[str, Any] | None = None,
    dtype: str | None = None,
    path: str | None = None,
) -> Layer:
    """Makes a GRU with attention (AUGRU) on oneDNN, from the weights of a GRU in any layout.

    A call takes one number a per step, `layer(x, h0, attention=a)`. It scales down the update gate u, which
    keeps the memory:

        h' = (1 - a) u h + (1 - (1 - a) u) n

    So 0 is the GRU itself, and 1 puts the candidate n in the place of the memory. n resets before the
    recurrent product (augru) or after it (lbr_augru), as the layout says. In a layout whose u writes the
    candidate, 1 - u is used. Source: oneDNN's documentation of the primitive; the code that Zhou et al.,
    "Deep Interest Evolution Network" (arXiv 1809.03672), published computes this. Their article writes h' =
    (1 - a u) h + a u n, which is another function, and no primitive computes it.

    Args:
        arrays: Arrays by the framework's own names, of one layer and direction; see `stepnet.convert`.
        layout: The name of their layout, such as "torch.gru" or "paddle.fusion_gru".
        semantics: Values for the settings that the layout does not fix, by field of `Semantics`.
        dtype: float32, bfloat16 or float16; by default the dtype of the arrays.
        path: The library; by default the one of STEPNET_ONEDNN, or the one that is installed.

    Raises:
        InputError: For weights of anything but a GRU, and as `layer`.
        LayoutError, LibraryError: As `layer`.
        RefusedError: For activations that oneDNN lacks, as no other engine runs this cell; and as `layer`.

    >>> import numpy as np
    >>> from stepnet import onednn
    >>> weights = {"weight_ih_l0": np.ones((6, 1), "f4"), "weight_hh_l0": np.ones((6, 2), "f4")}
    >>> attending = onednn.augru(weights, "torch.gru")
    >>> x = np.ones((1, 2, 1), "float32")
    >>> kept, replaced = (attending(x, attention=np.full((1, 2), a, "float32"))[1] for a in (0, 1))
    >>> kept.round(3), replaced.round(3)
    (array([[0.335, 0.335]], dtype=float32), array([[0.984, 0.984]], dtype=float32))
    """
    attention_layer = layer(arrays, layout, semantics=semantics, path=path)
    if attention_layer.recurrence is None:
        raise RefusedError(f"onednn: a GRU with attention runs on oneDNN alone, and {attention_layer.reason}")
    cell = attention_layer.recurrence.cell
    if cell not in ATTENDED:
        raise InputError(f"augru takes the weights of a GRU, and {layout} is a layout of the cell {cell}")
    attending = replace(attention_layer, recurrence=replace(attention_layer.recurrence, cell=ATTENDED[cell]))
    return attending if dtype is None else attending.in_dtype(dtype)
