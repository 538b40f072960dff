"""From Python to a net: a step function called once on traced values.

`UFUNCS`, `FUNCTIONS` and `COMPOSED` are the functions of NumPy that a step may call: ufuncs that are
operations, other functions, and ufuncs that are computed by several operations.
"""

from typing import TYPE_CHECKING

from stepnet.compiler.values.fork_guard import late_names

if TYPE_CHECKING:
    from stepnet.compiler.trace.composed import COMPOSED as COMPOSED
    from stepnet.compiler.trace.numpy_functions import FUNCTIONS as FUNCTIONS
    from stepnet.compiler.trace.spec import Spec as Spec
    from stepnet.compiler.trace.step import trace_step as trace_step
    from stepnet.compiler.trace.ufuncs import UFUNCS as UFUNCS

__getattr__ = late_names(
    __name__,
    ("composed", "COMPOSED"),
    ("numpy_functions", "FUNCTIONS"),
    ("spec", "Spec"),
    ("step", "trace_step"),
    ("ufuncs", "UFUNCS"),
)
