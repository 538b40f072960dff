"""Import of Keras by name, since few of its types are known, with an error that says how to install it."""

from importlib.util import find_spec
from typing import Any

from stepnet.compiler.values.entry_points import imported
from stepnet.errors import InputError, pip_command


def installed(name: str = "keras") -> Any:
    """Imports a module of Keras; raises `InputError` where it is not installed.

    >>> installed().backend.backend()
    'torch'
    """
    try:
        return imported(name)
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing != "keras" and find_spec("keras") is not None:
            raise InputError(
                f"Keras is set to a backend that needs {missing}, which is not installed: set the "
                'environment variable KERAS_BACKEND to "torch" ahead of the import of Keras (or "backend" in '
                f"~/.keras/keras.json), or install the other: {pip_command('stepnet[keras,torch]')}"
            ) from error
        raise InputError(
            "stepnet.keras needs Keras and the backend that it is set to: "
            f"{pip_command('stepnet[keras,torch]')}"
        ) from error
