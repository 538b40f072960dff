"""From Python to a net: a step function called once on traced values.

`UFUNCS`, `FUNCTIONS` and `COMPOSED` are the functions of NumPy that a step may call: ufuncs that are
operations, other functions, and ufuncs that are computed by several operations.
"""

from typing import TYPE_CHECKING

from stepnet.compiler.values.fork_guard import imported_late

if TYPE_CHECKING:
    from stepnet.compiler.trace.composed import COMPOSED
    from stepnet.compiler.trace.numpy_functions import FUNCTIONS
    from stepnet.compiler.trace.spec import Spec
    from stepnet.compiler.trace.step import trace_step
    from stepnet.compiler.trace.ufuncs import UFUNCS

__all__ = ["COMPOSED", "FUNCTIONS", "UFUNCS", "Spec", "trace_step"]
HOMES = {
    "COMPOSED": "composed",
    "FUNCTIONS": "numpy_functions",
    "Spec": "spec",
    "UFUNCS": "ufuncs",
    "trace_step": "step",
}
"""The modules of names, which are imported at their first use: a net that is stored needs no tracer."""


def __getattr__(name: str) -> object:
    """Imports a name at its first use."""
    return imported_late(__name__, name, HOMES.get(name))
