"""Whether a graph is made to be saved: it is then to hold Keras' own operations, which run anywhere."""

import os
from inspect import currentframe

from stepnet.errors import StepError
from stepnet.keras.installed import installed

FOLDERS = [os.path.dirname(os.path.abspath(installed("keras.src.export").__file__)) + os.sep]
"""Where Keras, and its backend, have what saves graphs."""

EXPORTED = "the model is exported: its graph holds Keras' own operations"


def check_not_exported() -> None:
    """Raises `StepError` where a function that saves graphs has called this one."""
    frame = currentframe()
    while frame is not None:
        if frame.f_code.co_filename.startswith(tuple(FOLDERS)):
            raise StepError(EXPORTED)
        frame = frame.f_back
