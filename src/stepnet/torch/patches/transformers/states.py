"""Finds layers that run over steps without a function of the tables, so that reports name them.

update_recurrent_state      method of a cache of transformers that a layer calls (`table.STATES`)
fused_recurrent_rwkv7       functions that layers of other packages call, by parts of their names
config.layer_types[3]       the kind of a layer in the configuration of a model
"""

import functools
import inspect
import re
from collections.abc import Callable
from typing import Any, cast

from stepnet.torch.patches.transformers.rebind import innermost
from stepnet.torch.patches.transformers.records import FILES
from stepnet.torch.patches.transformers.table import STATES

KERNELS = re.compile(
    "selective_scan|chunk_scan|delta_rule|delta_attention|fused_recurrent|chunk_gla|chunk_simple_gla"
    "|retention|lightning_attn|rwkv|mlstm"
)
"""Parts of the names of functions that compute recurrences, in the libraries of such kernels."""
RECURRENT = ("linear_attention", "hybrid", "hybrid_sliding")
"""The types of layers in configurations of transformers that have a recurrence."""


@functools.cache
def without_functions(kind: Any) -> str | None:
    """Returns the reason why a class of layers (`kind`) that runs over steps is left as it is, if it has no
    functions that stepnet replaces; None for a class that does not run over steps.

    Layers over steps are recognised by a method of a cache in `STATES` that their code calls, or, for a class
    from elsewhere, by a function that its `forward` calls.
    """
    members: list[Any] = [member for base in kind.__mro__ for member in base.__dict__.values()]
    every = {name for member in members for name in names_in_code(member)}
    if (why := next((why for name, why in STATES.items() if name in every), None)) is not None:
        return why
    if kind.__module__.startswith(FILES):
        return None
    forward = inspect.getattr_static(kind, "forward", None)  # a class of TorchScript computes its own
    called = sorted(filter(KERNELS.search, names_in_code(forward)))
    return f"it calls {called[0]}, which is no function of transformers" if called else None


def names_in_code(member: Any) -> tuple[str, ...]:
    """Returns the names that a method's code uses, to find the methods it calls; empty for other members."""
    code = getattr(innermost(member), "__code__", None)
    return () if code is None else code.co_names


def unknown_layers(model: Any, is_known: Callable[[Any], bool]) -> dict[str, str]:
    """Returns the reasons why layers of a model are left that run over steps according to the `layer_types`
    of its configuration, and have no part that stepnet knows; by their names, as in "layers.3".

    is_known: tells whether stepnet knows the class of a part, in order to replace it or to say why it does
        not.
    """
    types = getattr(getattr(model, "config", None), "layer_types", None)
    layers: Any = dict(model.named_children()).get("layers")
    if not isinstance(types, list | tuple) or layers is None:
        return {}
    return {
        f"layers.{name}": f"the configuration says {kind!r}, and stepnet knows none of its parts"
        for kind, (name, layer) in zip(cast("list[Any]", types), layers._modules.items(), strict=False)
        if kind in RECURRENT and not any(is_known(type(part)) for part in layer.modules())
    }
