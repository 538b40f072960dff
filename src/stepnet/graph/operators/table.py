"""The table of the rules of ONNX's operators, except recurrences."""

from collections.abc import Mapping

from stepnet.graph.operators.call import Rules
from stepnet.graph.operators.products import PRODUCTS
from stepnet.graph.operators.reductions import OVER_AXES
from stepnet.graph.operators.rowwise import POINTWISE
from stepnet.graph.operators.selecting import SELECTING
from stepnet.graph.operators.shaping import SHAPING

OPERATORS: Mapping[str, Rules] = {**POINTWISE, **PRODUCTS, **OVER_AXES, **SHAPING, **SELECTING}
