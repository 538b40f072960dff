"""A program of PaddlePaddle as a function of sequences, for `sn.Graph`."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from stepnet.errors import ModelError, StepnetError
from stepnet.files.paddle.program import Operation, Program
from stepnet.graph.operators.inputs import ArrayModel
from stepnet.graph.operators.placed import AxesError, Placed, constant
from stepnet.paddle.call import PaddleCall
from stepnet.paddle.operators import RULES

Array = np.ndarray


@dataclass(frozen=True)
class PaddleModel(ArrayModel):
    """A program with its parameters, and its inputs with their axes."""

    program: Program
    parameters: Mapping[str, Array]

    def __call__(self, x: Any, params: Any, statics: Any = None) -> Any:
        """The outputs: by name where there are several."""
        env = {name: constant(array) for name, array in self.parameters.items()}
        env |= self.placed(x, statics)
        for operation in needed(self.program):
            env |= self.results(operation, env)
        made = {name: self.value(env, source).value for name, source in self.program.outputs.items()}
        return next(iter(made.values())) if len(made) == 1 else made

    def value(self, env: Mapping[str, Placed], name: str) -> Placed:
        """A value that is known by now."""
        if name not in env:
            raise ModelError(f"{self.path}: {name!r} is none of its values")
        return env[name]

    def results(self, operation: Operation, env: Mapping[str, Placed]) -> dict[str, Placed]:
        """What an operation gives, by name; errors name it."""
        try:
            operands = {
                slot: tuple(self.value(env, name) for name in names)
                for slot, names in operation.inputs.items()
            }
            made = RULES[operation.type](PaddleCall(operation, operands, self.has_lengths))
        except StepnetError as error:
            reason = str(error).partition("\n  at ")[0]
            kind = AxesError if isinstance(error, AxesError) else ModelError
            raise kind(f"{reason}\n  at {operation.place} of {self.path}") from error
        slots = cast("dict[str, Any]", made) if isinstance(made, dict) else {"Out": made}
        return {
            name: value
            for slot, values in slots.items()
            for name, value in zip(operation.outputs.get(slot, ()), listed(values), strict=False)
        }


def listed(values: Any) -> Sequence[Placed]:
    """The values of a slot."""
    return [values] if isinstance(values, Placed) else values


def names(slots: Mapping[str, Iterable[str]]) -> set[str]:
    """All names in slots."""
    return {name for each in slots.values() for name in each}


def needed(program: Program) -> list[Operation]:
    """The operations that the outputs need, in order. A name may be given a value again further on."""
    wanted, kept = set(program.outputs.values()), list[Operation]()
    for operation in reversed(program.operations):
        if wanted & names(operation.outputs):
            kept.append(operation)
            wanted = (wanted - names(operation.outputs)) | names(operation.inputs)
    return kept[::-1]
