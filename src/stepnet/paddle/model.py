"""Runs a program of PaddlePaddle as a function of sequences, which `sn.Graph` traces."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, ClassVar, cast

import numpy as np

from stepnet.compiler.values.records import dataclass
from stepnet.errors import ModelError
from stepnet.importers.convolving import ZerosAround, with_zeros
from stepnet.importers.padding import as_list
from stepnet.importers.placed import Placed, constant
from stepnet.layout.files.paddle.program import PaddleOperation, PaddleProgram
from stepnet.model.graph.array_model import ArrayModel, located
from stepnet.paddle.call import PaddleCall
from stepnet.paddle.convolving import CONVOLUTIONS
from stepnet.paddle.names import PADDLE
from stepnet.paddle.written_numbers import numbers_of

Array = np.ndarray


@dataclass(frozen=True)
class PaddleModel(ArrayModel):
    """Program of PaddlePaddle with its parameters, as a function of its inputs, which `sn.Graph` traces."""

    open_steps: ClassVar[str] = "save the program with an open number of steps (InputSpec of -1)"
    program: PaddleProgram
    parameters: Mapping[str, Array]

    def computed(self, inputs: Mapping[str, Placed], params: Mapping[str, Any]) -> dict[str, Placed]:
        """Computes the outputs of the program by name, from its inputs by name."""
        env = {name: constant(array) for name, array in self.parameters.items()}
        env |= inputs
        for operation in needed(self.program):
            env |= self.results(operation, env)
        return {name: self.value(env, source) for name, source in self.program.outputs.items()}

    def value(self, env: Mapping[str, Placed], name: str) -> Placed:
        """Returns the value of a Paddle program called `name` from those computed so far, `env`; raises
        `ModelError` for other names.
        """
        if name not in env:
            raise ModelError(
                f"{self.path}: {name!r} is not a value of the program, or is used before it is computed"
            )
        return env[name]

    def results(self, operation: PaddleOperation, env: Mapping[str, Placed]) -> dict[str, Placed]:
        """Computes an operation of the program by the rule of its operator; returns its results by name.
        Errors name the operation and the file.

        env: the values computed so far, by name.
        """
        with located(f"{operation.location} of {self.path}"):
            operands = {
                slot: tuple(self.value(env, name) for name in names)
                for slot, names in operation.inputs.items()
            }
            call = PaddleCall(operation, operands, self.has_lengths)
            found = evaluated(call)
            slots = cast("dict[str, Any]", found) if isinstance(found, dict) else {"Out": found}
            first = as_list(next(iter(slots.values())))
            self.note(operation.location, lambda: numbers_of(call, first))
        return {
            name: value
            for slot, values in slots.items()
            for name, value in zip(operation.outputs.get(slot, ()), as_list(values), strict=False)
        }


def evaluated(call: PaddleCall) -> Any:
    """Computes the result of a Paddle operation, or a dict of its results by slot (the name of the output).

    Zeros that an operation before put around sequences are a placeholder with the value: operations that add
    and remove axes of size one keep it, a convolution reads it, and no other operation may.
    """
    kind = call.operation.type
    given = [value for values in call.operands.values() for value in values]
    zeros = [value.value for value in given if isinstance(value.value, ZerosAround)]
    if not zeros or kind in CONVOLUTIONS:
        return PADDLE[kind](call)
    if kind not in ("squeeze2", "unsqueeze2"):
        raise ModelError(zeros[0].reason)
    (inner,) = zeros
    made = PADDLE[kind](replace(call, operands={**call.operands, "X": (inner.source,)}))
    return with_zeros(made, inner.before, inner.after)


def names(slots: Mapping[str, Iterable[str]]) -> set[str]:
    """Collects the names of all values in the input or output slots of an operation."""
    return {name for names_of_slot in slots.values() for name in names_of_slot}


def needed(program: PaddleProgram) -> list[PaddleOperation]:
    """Lists the operations on which a Paddle program's outputs depend, in the program's order. Names are
    followed backwards, as a later operation may give a name another value.
    """
    required, operations = set(program.outputs.values()), list[PaddleOperation]()
    for operation in reversed(program.operations):
        if required & names(operation.outputs):
            operations.append(operation)
            required = (required - names(operation.outputs)) | names(operation.inputs)
    return operations[::-1]
