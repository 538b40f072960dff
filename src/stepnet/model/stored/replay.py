"""Steps and models of files as functions: a call adds the operations of a stored net to the traced one.

So a loaded model is traced, checked, planned and differentiated as one that is written in Python.
"""

from collections.abc import Sequence
from inspect import Parameter, Signature
from keyword import iskeyword
from typing import Any

from stepnet.compiler.net.ir import Builder, Net
from stepnet.compiler.net.types import Type
from stepnet.compiler.trace.lines import written_at
from stepnet.compiler.trace.spec import ARGUMENTS, TracedStep
from stepnet.compiler.trace.traced import Traced, builder_of, lifted
from stepnet.compiler.values.fork_guard import IMPORTS
from stepnet.compiler.values.records import dataclass
from stepnet.compiler.values.structure import arranged, leaves, named_leaves, rebuild, skeleton
from stepnet.errors import InputError
from stepnet.model.graph.traced_model import TracedModel

Part = tuple[str, Any, Any]
"""A kind of arguments: its name, the values that were given, and the structure in which they are stored."""

OWN_STEPS = "; inputs with lengths of their own are declared before it is saved, as sn.Spec(2, axis='target')"


@dataclass(frozen=True)
class StoredNet:
    """A net of a file, and the names that messages give it.

    file: the name of the file.
    name: the name of the step or model that was saved.
    """

    file: str
    name: str
    net: Net

    @property
    def __name__(self) -> str:
        """The name of this object, which stands for a function, in messages."""
        return self.name

    def results(self, parts: Sequence[Part], captured: Sequence[tuple[Any, str]] = ()) -> list[Traced]:
        """Adds the operations of the net of a model's file to the net that is traced; returns its results
        there.

        Raises `InputError` for values of other kinds than those for which the model was saved.

        parts: the arguments, in the order of the net's inputs, each as (the word for it in messages, the
        values, the structure in which the model was saved). captured: further inputs of the net, constants
        with their names.
        """
        given = [value for part in parts for value in self.checked(*part)]
        builder = builder_of(given)
        expected = [self.net.type_of(place) for place in self.net.inputs]
        names = [f"{kind} {name}".strip() for kind, _, like in parts for name, _ in named_leaves(like)]
        numbers = [lifted(builder, value, ()) for value in given]
        numbers += [builder.constant(array, name) for array, name in captured]
        for name, number, type_ in zip(names, numbers, expected, strict=False):
            self.check(name, builder.type_of(number), type_.computed)
        with written_at(self.file):
            return self.traced(builder, numbers)

    def traced(self, builder: Builder, numbers: Sequence[int]) -> list[Traced]:
        """Returns the results of the net on values of another one, of these numbers."""
        with IMPORTS:  # imported late: models that are traced already do not need it
            from stepnet.model.stored.nets import copied
        return [Traced(builder, number) for number in copied(self.net, builder, numbers)]

    def checked(self, kind: str, given: Any, like: Any) -> list[Any]:
        """Lists the values of one kind of a model's arguments, in order; raises `InputError` for another
        structure. kind: the word for it in messages.

        given: the values. like: the structure in which the model was saved.
        """
        given = arranged(given, like)
        if skeleton(given) != skeleton(like):
            raise InputError(
                f"{self.file}: the {kind} is {skeleton(given)}, and the model was saved for {skeleton(like)}"
            )
        return leaves(given)

    def check(self, name: str, given: Type, saved: Type) -> None:
        """Raises `InputError` for inputs of another type than those for which the model was saved. name:
        which ones, for the message. given, saved: the types.
        """
        if given != saved:
            own = given.extent != saved.extent and (given.shape, given.dtype) == (saved.shape, saved.dtype)
            raise InputError(
                f"{self.file}: the {name} is {given}, and the model was saved for {saved}: a file has a "
                "model for inputs like those of its last call, or those that it declares"
                f"{OWN_STEPS if own else ''}"
            )


@dataclass(frozen=True)
class StoredStep(StoredNet):
    """The step of a recurrence that was read from a file.

    inputs, memory, statics, params, output: the structures of its arguments and of its output.
    known_step: its trace, if an earlier process traced it.
    """

    inputs: Any
    memory: Any
    statics: Any
    params: Any
    output: Any
    known_step: TracedStep | None = None

    @property
    def __signature__(self) -> Signature:
        """The signature of the saved step, for messages: its parameters are named as the net's inputs."""
        places = iter([self.net.nodes[place].name for place in self.net.inputs])
        parts = (self.inputs, self.memory, self.statics, self.params)
        x, memory, _, params = (
            own_argument(part, [next(places) for _ in leaves(part)], usual)
            for part, usual in zip(parts, ("x", "memory", "statics", "params"), strict=True)
        )
        names = (x, memory, params) if len({x, memory, params, "statics", "index"}) == 5 else ARGUMENTS
        still = Parameter("statics", Parameter.POSITIONAL_OR_KEYWORD, default=None)
        return Signature([*(Parameter(name, Parameter.POSITIONAL_OR_KEYWORD) for name in names), still])

    def __call__(self, x: Any, memory: Any, params: Any, statics: Any = None) -> tuple[Any, Any]:
        """Adds the operations of a step from a model's file to the net that is traced; returns the output and
        the next memory. The arguments are values of that net, in their structures.
        """
        own = [*self.__signature__.parameters]
        results = self.results(
            [
                (f"input `{own[0]}`", x, self.inputs),
                (f"memory `{own[1]}`", memory, self.memory),
                ("static", statics, self.statics),
                (f"parameter `{own[2]}`", params, self.params),
            ]
        )
        count = len(leaves(self.output))
        return rebuild(self.output, results[:count]), rebuild(self.memory, results[count:])


def own_argument(structure: Any, names: Sequence[str], usual: str) -> str:
    """Returns the name of an argument of a saved step, from the names that the file gives its values.

    It is the usual name if these do not tell it, as for a dict, and if it is not a name in Python.

    structure: of the argument. names: of its values. usual: the usual name.
    """
    paths = [name for name, _ in named_leaves(structure)]
    if not paths or not names[0].endswith(ending := f".{paths[0]}" if paths[0] else ""):
        return usual
    own = names[0].removesuffix(ending)
    return own if own.isidentifier() and not iskeyword(own) else usual


@dataclass(frozen=True)
class StoredUntil(StoredNet):
    """The condition that ends the sequences of a recurrence of a file.

    output, memory: the structures of its arguments.
    """

    output: Any
    memory: Any

    def __call__(self, output: Any, memory: Any) -> Any:
        """Returns a bool per row, True where the sequence ends with this step."""
        parts = [("output", output, self.output), ("memory", memory, self.memory)]
        return self.results(parts)[0]


@dataclass(frozen=True)
class StoredModel(StoredNet):
    """The function of a graph that was read from a file.

    inputs, statics, params, output: the structures of its arguments and of its output.
    captured: the arrays that it captured, with their names.
    known_net: its net, if an earlier process traced it.
    """

    inputs: Any
    statics: Any
    params: Any
    output: Any
    captured: tuple[tuple[Any, str], ...]
    known_net: TracedModel | None = None

    def __call__(self, x: Any, params: Any, statics: Any = None) -> Any:
        """Adds the operations of a model from a file to the net that is traced; returns its outputs. The
        arguments are values of that net, in their structures.
        """
        results = self.results(
            [
                ("input", x, self.inputs),
                ("static", statics, self.statics),
                ("parameter", params, self.params),
            ],
            self.captured,
        )
        return rebuild(self.output, results)
