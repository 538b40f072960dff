"""The place of every number of a layout: an index in an array for each number of each parameter of a gate."""

from math import prod
from typing import Any

import numpy as np

from stepnet.layout import Record, Sizes
from stepnet.layout.places import ParameterBlock, regions, shape_of

Array = np.ndarray[Any, Any]
__all__ = ["ParameterBlock", "index_map"]


def index_map(record: Record, sizes: Sizes) -> dict[ParameterBlock, tuple[str, Array]]:
    """For every block (one parameter of one gate) its array's name and the index of each number there. In a
    layout every number of every array is in exactly one position of one block.
    """
    counted: dict[str, Array] = {}
    for entry in record.entries(sizes):
        shape = shape_of(entry.pattern, sizes, entry.layer or 0)
        counted[entry.name] = np.arange(prod(shape)).reshape(shape)
    return {
        region.block: (
            region.array,
            region.view(counted[region.array]).reshape(region.block.shape(sizes)).copy(),
        )
        for region in regions(record, sizes)
    }
