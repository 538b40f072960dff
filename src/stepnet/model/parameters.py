"""The parameters of models: arrays in any structure, copied when a model gets them."""

from typing import Any

from stepnet.compiler.net.types import read_only_copy
from stepnet.compiler.trace.traced import Traced
from stepnet.compiler.values.arguments import array_of, dtype_name
from stepnet.compiler.values.structure import arranged, leaves, named_leaves, skeleton, transform
from stepnet.errors import InputError


def parameter(value: Any) -> Any:
    """Returns a read-only copy of a parameter as an array; raises `InputError` for a value that is not an
    array.

    Inside a step, a parameter of that step is returned unchanged.
    """
    if isinstance(value, Traced) and value.is_constant:
        return value
    array = array_of(value, "a parameter")
    dtype_name(array.dtype, "a parameter")
    return read_only_copy(array)


def same_parameters(params: Any, before: Any, owner: str) -> Any:
    """Copies new parameters; raises `InputError` unless `before` has their structure, shapes and dtypes.

    owner: the word for the model in messages.
    """
    made = transform(parameter, arranged(params, before))
    if skeleton(made) != skeleton(before):
        raise InputError(f"the parameters are {skeleton(made)}; those of the {owner} are {skeleton(before)}")
    for (name, old), new in zip(named_leaves(before), leaves(made), strict=True):
        if (old.shape, old.dtype) != (new.shape, new.dtype):
            raise InputError(
                f"{f'parameter {name}' if name else 'the parameter'} is {new.dtype}{list(new.shape)}; "
                f"that of the {owner} is {old.dtype}{list(old.shape)}"
            )
    return made
