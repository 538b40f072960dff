"""Stores the first call of a model of a file, so that later processes are ready to run it (`ready.py`)."""

from collections.abc import Callable
from typing import Any

import numpy as np

from stepnet.compiler.disk import store
from stepnet.compiler.disk.entry import NotDataError
from stepnet.compiler.native.frozen import ready_call
from stepnet.compiler.native.watching import watching
from stepnet.compiler.targets import Bound, Call, FreezingBound, Results
from stepnet.compiler.values.dtypes import same_bits
from stepnet.compiler.values.structure import leaves, transform
from stepnet.model.forms import FormedCall
from stepnet.model.ready import FORM, Keeper, StoredCall


def keep(
    keeper: Keeper,
    formed: FormedCall,
    bound: Bound,
    call: Call,
    structured: Callable[[Results], tuple[Any, Any]],
) -> None:
    """Stores a call that has run, if it is one of a single array without options that machine code alone
    runs. It is frozen, and the frozen code computes the results once more: it is stored only if they have the
    same bits.

    keeper: where it is stored. formed: the call as its caller made it. bound: the kernel with its parameters.
    call, structured: the checked call, and what returns its results as outputs and final memories.
    """
    form, given, places = formed
    if places is not None or type(given) is not np.ndarray:
        return
    _, _, _, time_major, last_only, engine, _ = form
    if time_major or last_only or engine != "auto":
        return
    if not isinstance(bound, FreezingBound) or watching() is not None:
        return
    is_named = np.dtype(given.dtype.str) == given.dtype  # those of ml_dtypes have the text of raw bytes
    if not is_named or any(array.flags.writeable for array in leaves(keeper.params)):
        return
    known = list[Any]()

    def returned(results: Results) -> Any:
        """Returns the results of the call as its caller has them, and notes them."""
        outputs, final = structured(results)
        known.append((outputs, final) if keeper.gives_final else outputs)
        return known[-1]

    frozen = bound.frozen(call, given, returned)
    ready = None if frozen is None else ready_call(frozen)
    if frozen is None or ready is None or (again := ready.run(given)) is None:
        return
    if not all(map(same_bits, again, leaves(known[-1]))):
        return
    structure = transform(lambda _: 0, known[-1])
    try:
        data = FORM.packed(StoredCall(frozen, given.shape, given.dtype.str, structure))
    except NotDataError:  # results in a named tuple
        return
    store.put("call", keeper.key, data)
