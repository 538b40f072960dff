"""The arguments of a module that is traced: tensors with named axes, and those with steps of their own."""

import inspect
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

from stepnet.compiler.net.windows import own_axis, own_name
from stepnet.compiler.trace.spec import Spec
from stepnet.compiler.values.records import dataclass
from stepnet.compiler.values.structure import leaves, transform
from stepnet.errors import InputError
from stepnet.importers.sizes import SEQUENCES, STEPS
from stepnet.torch.pytorch import pytorch
from stepnet.torch.recurrence import Recurrence
from stepnet.torch.sequences import PackedSequence
from stepnet.torch.trace import described, dtype_of

torch: Any = pytorch("torch")

LETTERS = {"N": SEQUENCES, "T": STEPS}
"""Letters, in the text of an input's axes, of axes that are not features."""
LENGTHS = "lengths"


@dataclass(frozen=True)
class ModuleArgument:
    """Description of one argument of a traced module, without its numbers.

    kind: "sequences", "static" (no steps), "lengths", or "fixed" for values that are not tensors.
    letters: one for each leading axis: N (sequences), T (steps), _ (features); all further axes are features.
    value: the structure of the argument; a fixed argument itself.
    specs: the features and dtypes of its tensors, in this structure.
    """

    kind: str
    letters: str
    value: Any
    specs: Any

    @classmethod
    def of(cls, name: str, value: Any, letters: str, is_lengths: bool) -> "ModuleArgument":
        """Describes an argument of a module by its value in the example: whether it has sequences, statics,
        lengths or a fixed value, its axes, structure, features and dtypes. Raises `InputError` for wrong
        letters or axes.

        name: for messages. letters: one for each axis, N for sequences, T for steps, _ for features.
        is_lengths: whether the argument has the lengths of the sequences.
        """
        tensors = leaves(value)
        are = [isinstance(tensor, torch.Tensor) for tensor in tensors]
        if not any(are):
            return cls("fixed", "", value, None)
        if isinstance(value, PackedSequence) or not all(are):
            raise InputError(
                f"argument {name} is a {type(value).__name__}; an argument is a tensor, a structure of "
                "tensors, or holds none"
            )
        if is_lengths:
            return cls("lengths", "N", 0, None)
        rank = min(tensor.dim() for tensor in tensors)
        if (
            set(letters) - {"N", "T", "_"}
            or letters.count("N") != 1
            or letters.count("T") > 1
            or len(letters) > rank
        ):
            raise InputError(
                f"the axes of argument {name} are {letters!r}; they are a letter for each of its {rank} "
                "axes, N once for the sequences, T at most once for the steps, and _ for features, of which "
                "the last ones may be left out"
            )

        def spec(tensor: Any) -> Spec:
            """Returns the `Spec` (sizes of the features, dtype) of a tensor of the argument: its sizes
            without the axes of sequences and steps.
            """
            sizes = [
                size for place, size in enumerate(tensor.shape) if letters[place : place + 1] in ("", "_")
            ]
            return Spec(tuple(sizes), dtype_of(tensor, f"argument {name}"))

        blank = transform(lambda tensor: 0, value)
        return cls("sequences" if "T" in letters else "static", letters, blank, transform(spec, value))

    def sizes(self, features: tuple[int, ...], steps: str = STEPS) -> tuple[int | str, ...]:
        """Returns the sizes of a tensor of this argument for a trace. Sequences and steps, whose numbers are
        not known, have names in place of sizes. features: the other sizes. steps: the name of the steps.
        """
        remaining, names = iter(features), {**LETTERS, "T": steps}
        named = [names[letter] if letter in names else next(remaining) for letter in self.letters]
        return (*named, *remaining)

    def with_own_steps(self, name: str) -> "ModuleArgument":
        """Returns the argument, which has this name, as one that has steps of its own."""
        axis = own_name(own_axis(name))
        return replace(self, specs=transform(lambda spec: replace(spec, axis=axis), self.specs))


def arguments_of(model: Any, example: Any) -> dict[str, Any]:
    """Binds an example call to the signature of a module's forward; returns the arguments by name.

    example: a tuple of positional arguments, a dict of named ones, or the only argument.
    """
    if isinstance(example, list):
        raise InputError("example is a list: give a tensor, a tuple of arguments, or a dict of them by name")
    given: tuple[Any, ...] = cast("Any", example) if type(example) is tuple else (example,)
    try:
        signature = inspect.signature(model.forward)
        bound = signature.bind(**example) if isinstance(example, dict) else signature.bind(*given)
    except TypeError as error:
        raise InputError(f"example is not a call of {type(model).__name__}: {error}") from None
    arguments = dict[str, Any]()
    for name, value in bound.arguments.items():
        kind = signature.parameters[name].kind
        if kind is inspect.Parameter.VAR_POSITIONAL:
            arguments |= {f"{name}[{place}]": each for place, each in enumerate(value)}
        else:
            arguments |= value if kind is inspect.Parameter.VAR_KEYWORD else {name: value}
    return arguments


def called_with(model: Any, arguments: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Returns the positional and the named arguments of a call of a module's forward.

    arguments: the result of `arguments_of`, where `*args` are "args[0]", "args[1]" and so on, and `**kwargs`
    have their names.
    """
    parameters, left = inspect.signature(model.forward).parameters, dict(arguments)
    several = [name for name, each in parameters.items() if each.kind is inspect.Parameter.VAR_POSITIONAL]
    extra = [left.pop(name) for name in arguments if several and name.startswith(f"{several[0]}[")]
    positional = list[Any]()
    for name, parameter in parameters.items():
        is_first = extra or parameter.kind is inspect.Parameter.POSITIONAL_ONLY
        if parameter.kind is inspect.Parameter.VAR_POSITIONAL or not (is_first and name in left):
            break
        positional.append(left.pop(name))
    return (*positional, *extra), left


def axes_of(model: Any, axes: Any, name: str, value: Any) -> Any:
    """Returns the letters of an argument's axes (N sequences, T steps, _ features), such as "NT".

    axes: the letters that the caller stated, for all arguments or by name. Where there are none, they are "N"
        for an argument with fewer than two axes, "TN" if the model's layers are not batch_first, else "NT".
    name, value: the argument's name, and its value in the example.
    """
    if isinstance(axes, str):
        return axes
    if isinstance(axes, Mapping) and name in axes:
        return cast("Mapping[str, str]", axes)[name]
    if axes is not None and not isinstance(axes, Mapping):
        raise InputError(
            "axes is a text such as 'NT', or a dict of such texts by the names of arguments, not "
            f"{described(axes)}"
        )
    if all(isinstance(leaf, torch.Tensor) and leaf.dim() < 2 for leaf in leaves(value)):
        return "N"
    kinds = torch.nn.RNNBase | torch.nn.MultiheadAttention | Recurrence
    first = {member.batch_first for member in model.modules() if isinstance(member, kinds)}
    if len(first) > 1:
        raise InputError(
            f"some layers are batch_first and others are not: say axes={{{name!r}: 'NT'}}, or 'TN'"
        )
    return "NT" if first != {False} else "TN"


def with_own_steps(arguments: dict[str, Any], forms: dict[str, ModuleArgument]) -> dict[str, ModuleArgument]:
    """Returns the descriptions of a module's arguments, where an argument whose number of steps in the
    example differs from that of the first one with steps is marked as having steps of its own.

    arguments: the values in the example by name. forms: the descriptions by name.

    Raises `InputError` if arguments of the example have different numbers of sequences; or of steps, if one
    argument has the lengths of the sequences.
    """
    rows, steps = (sizes_along(letter, arguments, forms) for letter in LETTERS)
    is_one = any(form.kind == "lengths" for form in forms.values())
    for sizes, what in ((rows, SEQUENCES), *(((steps, STEPS),) if is_one else ())):
        if len({*sizes.values()}) > 1:
            listed = ", ".join(f"{name} has {size}" for name, size in sizes.items())
            raise InputError(
                f"arguments of the example have different numbers of {what}: {listed}; axes= says which "
                f"axes they are, as axes={{{[*sizes][-1]!r}: '_N'}} of a state [layers, sequences, ...]"
            )
    own = {name for name, size in steps.items() if size != next(iter(steps.values()))}
    return {name: form.with_own_steps(name) if name in own else form for name, form in forms.items()}


def sizes_along(letter: str, arguments: dict[str, Any], forms: dict[str, ModuleArgument]) -> dict[str, int]:
    """Returns the size of the axis with a letter, N or T, of each argument that has it; raises `InputError`
    for tensors of one argument that have different sizes there.

    arguments: the values in the example by name. forms: the descriptions by name.
    """
    found = dict[str, int]()
    for name, form in forms.items():
        for tensor in leaves(arguments[name]) if letter in form.letters else ():
            size = tensor.shape[form.letters.index(letter)]
            if found.setdefault(name, size) != size:
                raise InputError(
                    f"tensors of argument {name} have different numbers of {LETTERS[letter]}: {found[name]} "
                    f"and {size}"
                )
    return found
