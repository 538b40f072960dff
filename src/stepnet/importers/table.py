"""The table of operators, except recurrences. Their names and attributes are those of ONNX."""

from collections.abc import Mapping

from stepnet.importers.call import Rules
from stepnet.importers.pointwise import POINTWISE
from stepnet.importers.products import PRODUCTS
from stepnet.importers.reductions import OVER_AXES
from stepnet.importers.selecting import SELECTING
from stepnet.importers.shaping import SHAPING

OPERATORS: Mapping[str, Rules] = {**POINTWISE, **PRODUCTS, **OVER_AXES, **SHAPING, **SELECTING}
