"""The dropout masks that Keras draws for a call: one for all steps, which cells keep while it runs."""

from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from stepnet.keras.cells import MASKS, cells_in
from stepnet.keras.settings import attributes


def masks_of(cell: Any) -> dict[str, tuple[Any, ...]]:
    """The dropout masks that Keras has drawn for a call, by where the cells keep them."""
    known = dict[str, tuple[Any, ...]]()
    for place, part in enumerate(cells_in(cell)):
        for name in MASKS:
            mask: Any = getattr(part, name, None)
            if mask is not None:
                known[f"{place}{name}"] = tuple(mask) if is_list(mask) else (mask,)
    return known


@contextmanager
def masked(cell: Any, masks: dict[str, tuple[Any, ...]]) -> Generator[None]:
    """A context in which the cells have these masks."""
    with ExitStack() as left:
        for place, part in enumerate(cells_in(cell)):
            for name in MASKS:
                mask = masks.get(f"{place}{name}")
                if mask is not None:
                    held = attributes(part)
                    left.callback(held.__setitem__, name, held[name])
                    held[name] = list(mask) if is_list(held[name]) else mask[0]
        yield


def is_list(mask: Any) -> bool:
    """Whether a cell has a mask for each gate."""
    return isinstance(mask, Sequence)
