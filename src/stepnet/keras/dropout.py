"""Dropout masks, which Keras draws once for all steps of a call, and stores in the cells while it runs."""

from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from stepnet.keras.cells import MASKS, cells_in
from stepnet.keras.settings import attributes


def read_dropout_masks(cell: Any) -> dict[str, tuple[Any, ...]]:
    """Reads the dropout masks that Keras has drawn for a call and stored in a cell, or a stack of cells.

    Returns them by position of the cell and name of the attribute; each is a tuple of one mask, or of one per
    gate.
    """
    masks = dict[str, tuple[Any, ...]]()
    for index, cell_of_stack in enumerate(cells_in(cell)):
        for name in MASKS:
            mask: Any = getattr(cell_of_stack, name, None)
            if mask is not None:
                masks[f"{index}{name}"] = tuple(mask) if is_list(mask) else (mask,)
    return masks


@contextmanager
def use_dropout_masks(cell: Any, masks: dict[str, tuple[Any, ...]]) -> Generator[None]:
    """Context in which a cell, or each cell of a stack, has these dropout masks, by position of the cell and
    name of the attribute, in place of its own: a trace puts its own values there.
    """
    with ExitStack() as restore:
        for index, cell_of_stack in enumerate(cells_in(cell)):
            for name in MASKS:
                mask = masks.get(f"{index}{name}")
                if mask is not None:
                    cell_attributes = attributes(cell_of_stack)
                    restore.callback(cell_attributes.__setitem__, name, cell_attributes[name])
                    cell_attributes[name] = list(mask) if is_list(cell_attributes[name]) else mask[0]
        yield


def is_list(mask: Any) -> bool:
    """Tells whether a dropout mask is a list of one mask per gate."""
    return isinstance(mask, Sequence)
