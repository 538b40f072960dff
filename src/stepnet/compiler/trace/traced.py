"""From a step, written as ordinary Python, to a net.

The step runs once on `Traced` values, which stand for arrays [rows, features...] (inputs, memories, statics)
or for parameters. NumPy's protocols dispatch each operation here, and rules translate it to operations of a
net. The rules use this module, and are imported when one is needed. The same step runs unchanged on NumPy
arrays, and tests compare the net with that.
"""

import inspect
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NoReturn, cast

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from stepnet.compiler.net.ir import Builder
from stepnet.compiler.net.ops import OPERATIONS
from stepnet.compiler.net.types import CONST, Type
from stepnet.compiler.trace.lines import refuse as refuse
from stepnet.compiler.trace.lines import user_line as user_line
from stepnet.compiler.values import arguments
from stepnet.compiler.values.dtypes import COMPUTED, DTYPES, computed, dtype_text
from stepnet.compiler.values.fork_guard import IMPORTS, imported_late
from stepnet.compiler.values.records import dataclass
from stepnet.compiler.values.structure import leaves, skeleton
from stepnet.errors import InputError, NetError, StepError, StepnetError
from stepnet.ragged import Ragged

# Applied to a traced value these return a traced value, which the stubs of NumPy do not know.
numpy: Any = np

METHODS = (
    *("all", "any", "argmax", "argmin", "argsort", "cumprod", "cumsum", "dot", "max", "mean", "min", "prod"),
    *("ravel", "repeat", "round", "squeeze", "std", "sum", "swapaxes", "take", "var"),
)
"""The methods of arrays that are NumPy's functions of the same names, with the array as first argument."""


class Rows:
    """Unknown number of rows. A step can only pass it on, as in `reshape(x.shape[0], ...)`."""

    def __repr__(self) -> str:
        """Writes the size of the row axis in shapes as `rows`, since a step does not know the number."""
        return "rows"

    def __eq__(self, other: object) -> bool:
        """Tells whether both are this object; raises `StepError` for other comparisons of the number."""
        return self is other or self.refused()

    __hash__ = object.__hash__

    def refused(self, *_: Any, **__: Any) -> NoReturn:
        """Raises `StepError`, in place of any operator or conversion of the unknown number of rows."""
        raise refuse(
            "the number of rows is not known in a step; use np.zeros_like(x), or let shapes broadcast"
        )

    __index__ = __int__ = __float__ = __complex__ = __bool__ = __array__ = __array_ufunc__ = refused
    __round__ = __trunc__ = __floor__ = __ceil__ = __neg__ = __pos__ = __abs__ = __invert__ = refused
    __lt__ = __le__ = __gt__ = __ge__ = refused
    __add__ = __sub__ = __mul__ = __truediv__ = __floordiv__ = __mod__ = __divmod__ = __pow__ = refused
    __radd__ = __rsub__ = __rmul__ = __rtruediv__ = __rfloordiv__ = __rmod__ = __rdivmod__ = __rpow__ = (
        refused
    )
    __and__ = __or__ = __xor__ = __lshift__ = __rshift__ = __matmul__ = refused
    __rand__ = __ror__ = __rxor__ = __rlshift__ = __rrshift__ = __rmatmul__ = refused


IN_PLACE = (
    "a step's values never change in place: write a = a + b for a += b, and a = np.add(b, c) for out=a; "
    "where some features change, join the parts by np.concatenate"
)
ROWS_AXIS = Rows()


@dataclass(frozen=True)
class Rules:
    """Table of rules for NumPy's operations in a step.

    ufuncs: for each ufunc, the name of an operation, or a function that builds several.
    functions: for each other function, the function that replaces it.
    indexed: computes x[index].
    """

    ufuncs: Mapping[np.ufunc, "str | Callable[..., Traced]"]
    functions: Mapping[Callable[..., Any], Callable[..., Any]]
    indexed: "Callable[[Traced, Any], Traced]"


def rules() -> Rules:
    """Returns the rules, which are imported at their first use: a net that is stored needs none."""
    found: Rules = imported_late("stepnet.compiler.trace", "RULES", "rules")
    return found


class Traced(NDArrayOperatorsMixin):
    """Value in a net that is being built: a step is called with such values in place of arrays, and each
    operation on them adds a node. It behaves like an array in everything that a step may do.
    """

    __slots__ = ("builder", "number")
    __array_priority__ = 1000

    def __init__(self, builder: Builder, number: int) -> None:
        """Makes the value that stands for the result of node `number` in the net that `builder` makes."""
        self.builder = builder
        self.number = number

    # ---- what it is

    @property
    def type(self) -> Type:
        """The type (extent, feature shape and dtype) of the value, from the net that is being built."""
        return self.builder.type_of(self.number)

    @property
    def is_constant(self) -> bool:
        """Tells whether the value is a parameter or computed from parameters only."""
        return self.type.extent == CONST

    @property
    def shape(self) -> tuple[Any, ...]:
        """The shape that the step sees: rows first, then features; a parameter has only its own axes."""
        return self.type.shape if self.is_constant else (ROWS_AXIS, *self.type.shape)

    @property
    def ndim(self) -> int:
        """The number of axes of the value, with that of the rows if it has rows."""
        return len(self.shape)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of the array that the value stands for."""
        return np.dtype(self.type.dtype)

    @property
    def T(self) -> "Traced":  # noqa: N802 - NumPy's name
        """The parameter with its axes reversed; raises `StepError` for a value with rows (one a sequence)."""
        if not self.is_constant:
            raise misfit(
                "x.T would move the rows; use np.swapaxes on feature axes, or transpose the parameter",
                self.builder,
                [self.number],
            )
        return transposed(self, tuple(reversed(range(len(self.type.shape)))))

    def __repr__(self) -> str:
        """Writes the type of the value, for messages and debugging."""
        return f"Traced({self.type})"

    # ---- what NumPy brings

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
        """Called by NumPy for a ufunc: applies the rule that adds its operation to the net. Raises
        `StepError` for a ufunc without a rule, and for its methods and options.
        """
        if method != "__call__":
            raise unknown(f"np.{ufunc.__name__}.{method}")
        if "out" in options:
            raise refuse(IN_PLACE)
        if options:
            raise refuse(f"np.{ufunc.__name__} takes no {', '.join(options)} in a step")
        rule = rules().ufuncs.get(ufunc)
        if rule is None:
            raise unknown(f"np.{ufunc.__name__}")
        with as_refused(f"np.{ufunc.__name__}"):
            return rule(*inputs) if callable(rule) else apply(rule, *inputs)

    def __array_function__(self, function: Callable[..., Any], types: Any, inputs: Any, options: Any) -> Any:
        """Called by NumPy for its other functions: applies the rule that adds its operations to the net.
        Raises `StepError` for a function without a rule, and for arguments that the rule does not take.
        """
        rule = rules().functions.get(function)
        if rule is None:
            name = f"{function.__module__}.{function.__name__}".replace("numpy", "np", 1)
            raise unknown(name)
        try:
            inspect.signature(rule).bind(*inputs, **options)
        except TypeError as error:
            raise refuse(f"np.{function.__name__} in a step: {error}") from None
        with as_refused(f"np.{function.__name__}"):
            return rule(*inputs, **options)

    def __getitem__(self, index: Any) -> "Traced":
        """Takes features, or rows of a parameter, by the rule for x[index]."""
        with as_refused("an index"):
            return rules().indexed(self, index)

    # ---- methods of arrays

    def astype(self, dtype: Any, copy: bool = True) -> "Traced":
        """Casts the value to another dtype that steps compute in. copy: accepted as in NumPy and ignored."""
        name = dtype_in_steps(dtype)
        return self if name == self.type.dtype else apply("cast", self, dtype=name)

    def reshape(self, *shape: Any) -> "Traced":
        """Reshapes the features; the first size is the number of rows."""
        as_sequence = len(shape) == 1 and isinstance(shape[0], tuple | list)
        return numpy.reshape(self, shape[0] if as_sequence else shape)

    def transpose(self, *axes: Any) -> "Traced":
        """Reorders the feature axes; the rows stay first."""
        as_sequence = len(axes) == 1 and not isinstance(axes[0], int)
        return numpy.transpose(self, (axes[0] if as_sequence else axes) if axes else None)

    def clip(self, min: Any = None, max: Any = None) -> "Traced":  # noqa: A002 - NumPy's names
        """Limits the value to two bounds, as `np.clip` does; None is no bound."""
        return numpy.clip(self, min, max)

    def copy(self) -> "Traced":
        """Returns the value itself: values never change."""
        return self

    # ---- what a step cannot do

    def __array__(self, *_: Any, **__: Any) -> Any:
        """Raises `StepError`, as a traced value has no numbers."""
        raise refuse(
            "a step's value is not an array while it is traced; use NumPy's functions on it as it is, and in "
            "place of np.array(values) np.stack(values, axis=-1)"
        )

    def __bool__(self) -> bool:
        """Raises `StepError`: a step cannot branch on a value, which may differ by row."""
        raise refuse("a step cannot branch on a value: every row may differ; use np.where")

    def __iter__(self) -> Iterator[Any]:
        """Raises `StepError`: a step cannot loop over a value, whose first axis is the rows."""
        raise refuse(
            "a step cannot loop over a value; slice its features: x[:, 0], x[:, 1], ... For a memory of two "
            "arrays give a list of their features, memory=[16, 16]: (16, 16) is one array"
        )

    def __len__(self) -> int:
        """Raises `StepError`: a step does not know the number of its rows."""
        raise refuse("len() of a step's value is its rows, which a step cannot know; use x.shape[-1]")

    def __float__(self) -> NoReturn:
        """Raises `StepError`: a traced value has no number."""
        raise refuse(
            "a step's value is not a number while it is traced: use functions of NumPy, such as np.exp for "
            "math.exp"
        )

    __int__ = __complex__ = __index__ = __float__

    @classmethod
    def __torch_function__(cls, function: Any, *_: Any) -> NoReturn:
        """Called by PyTorch for a function of its own: raises `StepError`."""
        raise refuse(
            f"torch.{function.__name__} is PyTorch's: a step of sn.RNN uses NumPy's functions and stepnet's; "
            "stepnet.torch.trace takes a step that is written with PyTorch's"
        )

    def __setitem__(self, index: Any, value: Any) -> None:
        """Raises `StepError`: a step makes new values, and changes none."""
        raise refuse("a step's values never change; use np.where or np.concatenate to make a new one")

    def __round__(self, digits: int | None = None) -> NoReturn:
        """Raises `StepError`: Python's round is for numbers."""
        raise refuse("round() is for numbers: write np.round(x), or np.rint(x)")

    def __getattr__(self, name: str) -> Any:
        """Returns a method of arrays that is a function of NumPy; raises `StepError` for others."""
        if name in METHODS:
            return partial(getattr(numpy, name), self)
        if name.startswith("__"):
            raise AttributeError(name)
        raise unknown(f".{name}")


def unknown(name: str) -> StepError:
    """Makes the error for a function that steps do not have, such as "np.median" or ".sort", with advice."""
    with IMPORTS:
        from stepnet.compiler.trace.advice import message_for
    return refuse(message_for(name))


@contextmanager
def as_refused(name: str) -> Generator[None]:
    """Context that turns NumPy's errors about its function `name` into `StepError`s with the user's line."""
    try:
        yield
    except StepnetError:
        raise
    except (TypeError, ValueError, IndexError, OverflowError, RuntimeError) as error:
        raise refuse(f"{name} in a step: {error}") from None


# ---- applying one operation --------------------------------------------------------------------------------


def apply(operation: str, *operands: Any, **attributes: Any) -> Traced:
    """Adds an operation to the net of its operands, and returns the result as a traced value. Raises
    `StepError` for operands that the operation does not take.

    operands: traced values, arrays and Python numbers. A Python number adapts to the dtype of the other
    operands, as in NumPy.
    """
    builder = builder_of(operands)
    numbers = [lifted(builder, value, operands) for value in operands]
    if OPERATIONS[operation].kind == "pointwise":
        align(builder, numbers)
    try:
        return Traced(builder, builder.add(operation, *numbers, source=user_line(), **attributes))
    except NetError as error:
        raise misfit(str(error), builder, numbers) from None


def misfit(message: str, builder: Builder, numbers: Sequence[int]) -> StepError:
    """Makes the error `message` for operands that do not fit, with the names that they have in the step."""
    values = [Traced(builder, number) for number in numbers]
    titles = " and ".join(map(title, values))
    return refuse(f"{message} (here {titles})" if any(map(argument_of, values)) else message)


def argument_of(x: Traced) -> str:
    """Returns the name of the step's argument that a value is, or that it is a cast of; "" for others."""
    node = x.builder.nodes[x.number]
    while node.operation == "cast":
        node = x.builder.nodes[node.inputs[0]]
    return str(node.name) if node.operation == "input" else ""


def title(x: Traced) -> str:
    """Names a value for a message: an argument of the step by its name, any other as "a value"."""
    name = argument_of(x)
    return f"`{name}`" if name else "a value"


def builder_of(operands: Sequence[Any]) -> Builder:
    """Returns the builder of the net to which the traced values among the operands of an operation belong. If
    they belong to nested nets, this is the innermost one. Raises `StepError` if they belong to different
    steps, and if no operand is a traced value.
    """
    builders = {id(value.builder): value.builder for value in operands if isinstance(value, Traced)}.values()
    for builder in builders:
        if all(other is builder or builder.is_inside(other) for other in builders):
            return builder
    raise refuse("values of two different steps meet; hand the value in as an input, static or parameter")


def dtype_in_steps(dtype: Any) -> str:
    """Returns the name of a dtype that steps compute in; raises `StepError` for any other."""
    name = dtype_text(dtype)
    if name not in COMPUTED:
        raise refuse(f"dtype {name} is none of {', '.join(COMPUTED)}")
    return name


def lifted(builder: Builder, value: Any, operands: Sequence[Any]) -> int:
    """Returns the number of a value in the net of `builder`; a value of an outer net enters as an input, and
    an array or number is added as a constant.

    operands: all operands of the operation, from which a Python number takes its dtype.
    """
    if isinstance(value, Traced):
        own = value.builder is builder
        return value.number if own else builder.captured(value.builder, value.number)
    if is_weak(value):
        strong = [kind_of(operand) for operand in operands if not is_weak(operand)]
        return builder.constant(filled((), value, np.result_type(*strong, value)))
    return builder.constant(constant_of(value))


def constant_of(value: Any) -> np.ndarray:
    """Converts a constant that a step uses, such as a list or an array, to an array of a dtype that steps
    compute in. Raises `StepError` for anything else, with advice for None, lists of values and texts.
    """
    if value is None:
        raise refuse(
            "None stands where a value or a number is needed: give the argument that it comes from, such as "
            "statics= or targets"
        )
    several = cast("tuple[Any, ...]", value) if isinstance(value, list | tuple) else ()
    if any(isinstance(part, Traced) for part in leaves(several)):
        raise refuse(
            f"a {type(several).__name__} of values stands where one value is needed: take one, or write "
            "np.stack(values, axis=-1). A list that is given makes such lists: give sequences as "
            "sn.Ragged.from_list(list), a parameter as np.array(list), the "
            "size of a memory as memory=4, and the features of inputs as inputs=4, without batch and steps"
        )
    if isinstance(value, dict):
        raise not_one(cast("dict[str, Any]", value), getattr(cast("Any", value), "argument", "values"))
    if isinstance(value, str):
        raise refuse(
            f"the text {value!r} stands where a value or a number is needed; the arrays of a dict are taken "
            f"by their keys, such as memory[{value!r}]: a loop over a dict gives its keys"
        )
    array = array_of(value, "a constant")
    if array.dtype.name not in COMPUTED:
        raise refuse(f"a constant of dtype {array.dtype} cannot enter a step; use one of {', '.join(DTYPES)}")
    return array


def not_one(values: Mapping[str, Any], argument: str) -> StepError:
    """Makes the error for a dict of values where a step needs one value. argument: the name of the dict."""
    first = next(iter(values), "name")
    return refuse(
        f"`{argument}` is {skeleton(values)}, and one value is needed: take it by its name, as "
        f"{argument}[{first!r}]"
    )


def is_weak(value: Any) -> bool:
    """Tells whether a value is a Python number, whose dtype adapts to that of the other operand."""
    return isinstance(value, int | float) and not isinstance(value, bool | np.generic)


def kind_of(value: Any) -> Any:
    """Returns the dtype, or the type for a Python number, by which NumPy's promotion treats a value."""
    if is_weak(value):
        return float if isinstance(value, float) else int
    return value.dtype if isinstance(value, Traced) else constant_of(value).dtype


def filled(shape: tuple[int, ...], value: Any, dtype: Any) -> np.ndarray:
    """Makes an array of one repeated number, cast as NumPy does; raises `StepError` for integers that do not
    fit the dtype, and values that do not fit the shape.
    """
    try:
        with np.errstate(all="ignore"):
            return np.full(shape, value, dtype)
    except OverflowError:
        raise refuse(
            f"{value} does not fit {dtype}; cast the other operand to a larger dtype with .astype"
        ) from None
    except ValueError:
        raise refuse(f"{value} does not broadcast to features {shape}") from None


def array_of(value: Any, what: str) -> np.ndarray:
    """Converts a value to an array in a dtype that steps compute in; raises `StepError` if it is none. what:
    the value's name, for the message.
    """
    try:
        return computed(arguments.array_of(value, what))
    except InputError as error:
        raise refuse(str(error)) from None


def align(builder: Builder, numbers: list[int]) -> None:
    """Prepares the operands of an elementwise operation in a step: removes a leading axis of size 1, that of
    the rows, from constants that have one axis more than the values with rows.

    numbers: the operands, changed in place.
    Raises `StepError` for operands whose features NumPy would broadcast against the rows.
    """
    types = [builder.type_of(number) for number in numbers]
    ranks = [len(type_.shape) for type_ in types if type_.extent != CONST]
    if not ranks:
        return
    if min(ranks) != max(ranks) and max(ranks) > 0:
        met = [number for number, type_ in zip(numbers, types, strict=True) if type_.extent != CONST]
        shapes = " and ".join(builder.type_of(number).element for number in met)
        raise misfit(
            f"values with different numbers of feature axes meet ({shapes}): NumPy would pair "
            "features with rows; add an axis with x[:, None] where it belongs",
            builder,
            met,
        )
    for index, type_ in enumerate(types):
        if type_.extent == CONST and len(type_.shape) > max(ranks):
            if type_.shape[0] != 1 or len(type_.shape) > max(ranks) + 1:
                raise misfit(
                    f"a parameter {type_.element} would be broadcast against the rows of a value with "
                    f"{max(ranks)} feature axes",
                    builder,
                    numbers,
                )
            numbers[index] = builder.add(
                "reshape", numbers[index], rank=len(type_.shape), shape=type_.shape[1:]
            )


def transposed(x: Traced, order: tuple[int, ...]) -> Traced:
    """Reorders the feature axes of a value; returns the value itself if the order does not change."""
    return x if order == tuple(range(len(order))) else apply("transpose", x, order=order)


def reshaped(x: Traced, shape: tuple[int, ...]) -> Traced:
    """Reshapes the features of a value; returns the value itself if the shape does not change."""
    return x if shape == x.type.shape else apply("reshape", x, rank=len(x.type.shape), shape=shape)


def is_traced(structure: Any) -> bool:
    """Returns whether the sequences of a call are values of a step or model that is being traced. structure:
    the sequences, in the structure in which the caller gives them.
    """
    if isinstance(structure, np.ndarray | Ragged):
        return False
    return any(isinstance(leaf, Traced) for leaf in leaves(structure))
