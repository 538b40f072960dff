"""Conversions from symbols to the inputs of a step: rows of a table, one-hot vectors, or plain numbers."""

from collections.abc import Callable
from typing import Any, cast

import numpy as np

from stepnet.compiler.trace.functions import one_hot
from stepnet.compiler.trace.spec import Spec
from stepnet.compiler.trace.traced import Traced, apply
from stepnet.compiler.values.arguments import array_of, short_repr
from stepnet.compiler.values.dtypes import DTYPES
from stepnet.compiler.values.records import dataclass
from stepnet.compiler.values.structure import leaves
from stepnet.errors import InputError
from stepnet.model.layers import Combined
from stepnet.model.model import Model
from stepnet.model.specs import with_dtypes

Array = np.ndarray


@dataclass(frozen=True)
class Feed:
    """A conversion from symbols to inputs.

    size: the number of symbols that can be fed; None for any.
    dtype: the dtype of the inputs.
    table: the input of each symbol, [size, features...]. Without it inputs are one-hot vectors or, where
        `size` is None, the symbols as numbers.
    """

    size: int | None
    dtype: str
    table: Array | None = None

    @property
    def spec(self) -> Spec:
        """The `Spec` (features, dtype) of the input that this conversion (feed) gives a step for a symbol."""
        if self.table is not None:
            return Spec(self.table.shape[1:], self.dtype)
        return Spec(() if self.size is None else self.size, self.dtype)

    @property
    def tables(self) -> list[Array]:
        """The table from symbols to inputs in a list, as a parameter of a net; empty without a table."""
        return [] if self.table is None else [self.table]

    def __call__(self, symbols: Array) -> Array:
        """Returns inputs [rows, features...] for symbols [rows]; raises `InputError` if one is too large."""
        if self.size is None:
            return symbols.astype(self.dtype)
        within(symbols, self.size)
        return one_hot(symbols, self.size, self.dtype) if self.table is None else self.table[symbols]

    def of_values(self, symbol: Traced, table: Traced | None = None) -> Traced:
        """Returns the inputs of a traced step for a symbol per row. symbol: the symbols, as a value of the
        step. table: the table of the feed as a value of the net; None without a table.
        """
        if table is not None:
            return apply("gather", table, symbol)
        return symbol.astype(self.dtype) if self.size is None else one_hot(symbol, self.size, self.dtype)


def feeder(model: Model, feed: Any) -> Feed | Callable[[Array], Any]:
    """Returns the conversion from symbols to inputs that the argument `feed` of `generate` stands for.

    A function is returned unchanged, and a table becomes a `Feed`. For None the `Feed` follows from the
    declared inputs of the model, or of its first recurrence; raises `InputError` if it has none.
    """
    if callable(feed):
        return cast("Callable[[Array], Any]", feed)
    if feed is not None:
        table = array_of(feed, "feed")
        if table.ndim < 1 or table.dtype.name not in DTYPES:
            raise InputError(
                "feed is a function of symbols [rows], or a table [symbols, features] of numbers, not "
                f"{short_repr(feed)}"
            )
        return Feed(len(table), table.dtype.name, table)
    while isinstance(model, Combined):
        model = model.layers[0]
    spec, _, params = model.declaration
    if not isinstance(spec, Spec) or len(spec.shape) > 1:
        raise InputError(
            "it is not known how symbols become inputs: make the model with inputs=, a number of features, "
            "or give feed="
        )
    if not spec.shape:
        return Feed(None, spec.dtype or "int64")
    return Feed(spec.shape[0], str(with_dtypes(spec, leaves(params)).dtype))


def within(symbols: Array, count: int) -> Array:
    """Returns symbols (whole numbers) unchanged; raises `InputError` if one of them cannot be fed to the
    recurrence. count: the number of symbols that can be fed, from 0 on.
    """
    beyond = symbols[symbols >= count]
    if len(beyond):
        raise InputError(f"symbol {beyond[0]} is none of the {count} that can be fed")
    return symbols
