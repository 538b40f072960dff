"""The interpreter's results for a net: right results, in the dtypes of the net."""

from collections.abc import Iterable

import numpy as np

from stepnet.compiler.net import Net
from stepnet.compiler.targets import Call, Results
from stepnet.compiler.targets.interpreter import InterpretedNet


def interpreted(net: Net, parameters: Iterable[np.ndarray], call: Call) -> Results:
    """The results of a call of a net with these parameters."""
    return InterpretedNet(net, tuple(parameters))(call)
