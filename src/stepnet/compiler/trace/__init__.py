"""From Python to a net: a step function called once on traced values.

`UFUNCS`, `FUNCTIONS` and `COMPOSED` are the functions of NumPy that a step may call: ufuncs that are
operations, other functions, and ufuncs that are computed by several operations.
"""

from stepnet.compiler.trace.composed import COMPOSED
from stepnet.compiler.trace.numpy_functions import FUNCTIONS
from stepnet.compiler.trace.step import Spec, trace_step
from stepnet.compiler.trace.ufuncs import UFUNCS

__all__ = ["COMPOSED", "FUNCTIONS", "UFUNCS", "Spec", "trace_step"]
