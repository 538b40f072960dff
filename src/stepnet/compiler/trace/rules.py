"""The rules of NumPy's operations in a step, imported when the first of them is looked up."""

from stepnet.compiler.trace.composed import COMPOSED
from stepnet.compiler.trace.indexing import indexed
from stepnet.compiler.trace.numpy_functions import FUNCTIONS
from stepnet.compiler.trace.traced import Rules
from stepnet.compiler.trace.ufuncs import UFUNCS

RULES = Rules({**COMPOSED, **UFUNCS}, FUNCTIONS, indexed)
