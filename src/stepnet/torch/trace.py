"""A step written with PyTorch as a recurrence: `trace`."""

import inspect
from typing import Any, cast

from stepnet.compiler.trace.spec import ARGUMENTS, Spec
from stepnet.compiler.values.arguments import argument_names, array_of, check_signature
from stepnet.compiler.values.dtypes import DTYPES
from stepnet.compiler.values.records import dataclass
from stepnet.compiler.values.structure import arranged, leaves, skeleton, transform
from stepnet.errors import InputError, StepError
from stepnet.model.recurrence import RNN
from stepnet.torch.arrays import array_of as numbers_of
from stepnet.torch.lines import is_of_user
from stepnet.torch.pytorch import pytorch
from stepnet.torch.reads import Unchanged
from stepnet.torch.step import Function, TorchStep

torch: Any = pytorch("torch")


def trace(
    step: Any, example: Any, *, statics: Any = None, reverse: bool = False, unroll: int = 1, until: Any = None
) -> RNN:
    """Makes a recurrence of a step that is written with PyTorch.

    The parameters and buffers of a module are the parameters of the recurrence, by their names. They are
    copied: after more training, trace the module again. Other tensors that the step uses are constants.

    Args:
        step: A cell module whose forward(x, state) returns the new state or (output, state), as those of
            torch.nn do; or a function step(x, memory, params) -> (output, memory) on tensors. Either gets
            `statics` and `index` too if it has parameters of these names. A state is a tensor or a structure
            of tensors. The output of a module that returns its state alone is that state, or the first of
            several (h of an LSTM's h and c).
        example: The arguments of one call: (x, state) for a module, (x, memory, params) or (x, memory) for a
            function. Tensors [rows, features...] with the same rows, of any number; only shapes and dtypes
            matter, except for `params`, whose numbers are used.
        statics: An example of the statics, tensors [rows, features...].
        reverse: Whether each sequence runs from its last step, as of `RNN`.
        unroll: The number of steps in one pass of the compiled loop, as of `RNN`.
        until: A function of the output and the next memory that ends a sequence, as of `RNN`.

    Raises:
        InputError: If `step` is no step, or `example` are not the arguments of a call.
        StepError: For an operation that steps do not have, or that mixes rows, with the line of your code.

    >>> import numpy as np, torch, stepnet.torch
    >>> cell = torch.nn.GRUCell(3, 4)
    >>> rnn = stepnet.torch.trace(cell, (torch.zeros(1, 3), torch.zeros(1, 4)))
    >>> rnn
    RNN(GRUCell, memory=array)
    >>> sorted(rnn.params)
    ['bias_hh', 'bias_ih', 'weight_hh', 'weight_ih']
    >>> outputs, final = rnn(np.ones((2, 5, 3), "float32"))
    >>> h = torch.zeros(2, 4)
    >>> for _ in range(5):
    ...     h = cell(torch.ones(2, 3), h)
    >>> bool(np.allclose(final, h.detach(), atol=1e-6))
    True
    """
    module: bool = isinstance(step, torch.nn.Module)
    called: Any = step.forward if module else step
    if isinstance(step, type) or not callable(step):
        raise InputError(f"a step is a torch.nn.Module or a function, not {described(step)}")
    x, memory, params = parts_of(example, step)
    if module:
        check_module(step)
        check_state(step, x, memory)
    if not leaves(memory):
        raise InputError(
            "the example has no state, which a recurrence carries from step to step: give tensors [rows, "
            "features...] as the second argument of the call"
        )
    if not module:
        check_signature(step, ARGUMENTS, ("statics", "index"))
    check_rows(x, memory, statics)
    inputs, memories, static_specs = (
        transform(lambda leaf, kind=kind: spec_of(leaf, kind), part)
        for kind, part in (("an input", x), ("a memory", memory), ("a static", statics))
    )
    with Unchanged(step):
        return RNN(
            TorchStep(OfModule(step, memories) if module else OfFunction(step), called, name_of(step)),
            transform(parameter, params),
            memory=memories,
            inputs=inputs,
            statics=static_specs,
            reverse=reverse,
            unroll=unroll,
            until=until,
        )


def parts_of(example: Any, step: Any) -> tuple[Any, Any, Any]:
    """Splits the arguments of an example call of a step into input, memory and parameters.

    The parameters of a module are its own; those of a function are the third argument, None without one.
    Raises `InputError` for another number of arguments, or for no tuple.
    """
    module = isinstance(step, torch.nn.Module)
    wanted = (2,) if module else (2, 3)
    if not isinstance(example, tuple) or len(arguments := cast("tuple[Any, ...]", example)) not in wanted:
        names = "(x, state)" if module else "(x, memory, params)"
        raise InputError(
            f"example is what one call of the step is given, a tuple {names}, not {described(example)}"
        )
    if module:
        return arguments[0], arguments[1], dict(tensors_of(step))
    return arguments[0], arguments[1], arguments[2] if len(arguments) == 3 else None


def described(value: Any) -> str:
    """Describes a value of a wrong type for a message, as in "a tuple of 2" or "the class X"."""
    if isinstance(value, tuple):
        return f"a tuple of {len(cast('tuple[Any, ...]', value))}"
    if isinstance(value, type):
        return f"the class {value.__name__}"
    return f"a {type(value).__name__}"


def check_module(module: Any) -> None:
    """Raises `InputError` for a module that cannot be called as cell(x, state), such as a recurrent layer."""
    name = type(module).__name__
    if isinstance(module, torch.nn.RNNBase):
        raise InputError(
            f"torch.nn.{name} runs over the steps itself; give a cell, as torch.nn.{name}Cell, or bring its "
            "weights over with stepnet.convert"
        )
    signature = inspect.signature(module.forward)
    further = {"statics", "index"} & signature.parameters.keys()
    try:
        signature.bind("x", "state", **dict.fromkeys(further))
    except TypeError as error:
        raise InputError(f"{name} is not a cell, which is called with (x, state): {error}") from None


def check_state(cell: Any, x: Any, state: Any) -> None:
    """Raises `InputError` for an example of a cell of torch.nn whose input is not one tensor, whose tensors
    are not [rows, features], or whose state has not the form that the cell takes.
    """
    if not isinstance(cell, torch.nn.RNNCellBase):
        return
    name = type(cell).__name__
    pair = isinstance(cell, torch.nn.LSTMCell)
    if (len(leaves(state)) == 2) != pair:
        form = "(x, (h, c))" if pair else "(x, h)"
        raise InputError(f"the example of a torch.nn.{name} is {form}, not with a state {skeleton(state)}")
    if not isinstance(x, torch.Tensor):
        raise InputError(f"the input of a torch.nn.{name} is one tensor [rows, features], not {described(x)}")
    for leaf in leaves((x, state)):
        if isinstance(leaf, torch.Tensor) and leaf.dim() != 2:
            raise InputError(
                f"the example of a torch.nn.{name} has tensors [rows, features], and one of them is "
                f"{list(leaf.shape)}: give x[None] for a single row"
            )


def check_rows(*parts: Any) -> None:
    """Raises `InputError` for tensors of an example with different numbers of rows, their first axis; one row
    stands for any number. parts: the inputs, states and statics.
    """
    tensors = [leaf for leaf in leaves(parts) if isinstance(leaf, torch.Tensor) and leaf.dim()]
    if len({tensor.shape[0] for tensor in tensors} - {1}) > 1:
        shapes = ", ".join(str(list(tensor.shape)) for tensor in tensors)
        raise InputError(
            f"the tensors of the example are [rows, features...] with the same rows, and not {shapes}: give "
            "x[None] for a single row"
        )


def spec_of(leaf: Any, kind: str) -> Spec:
    """Returns features and dtype of an example tensor (`leaf`) [rows, features...]; raises `InputError` for
    other values. kind: the text for it in messages, such as "an input".
    """
    if not isinstance(leaf, torch.Tensor) or leaf.ndim < 1:
        what = f"one of {leaf.ndim} axes" if isinstance(leaf, torch.Tensor) else described(leaf)
        raise InputError(f"{kind} of the example is a tensor [rows, features...], not {what}")
    return Spec(tuple(leaf.shape[1:]), dtype_of(leaf, f"{kind} of the example"))


def dtype_of(tensor: Any, what: str) -> str:
    """Returns the name of a tensor's dtype; raises `InputError`, about `what`, for an unsupported one."""
    name = str(tensor.dtype).removeprefix("torch.")
    if name not in DTYPES:
        raise InputError(f"{what} has dtype {name}; use one of {', '.join(DTYPES)}")
    return name


def parameter(leaf: Any) -> Any:
    """Copies a parameter, a tensor or an array-like, to an array; `InputError` for unsupported dtypes."""
    if not isinstance(leaf, torch.Tensor):
        return array_of(leaf, "a parameter").copy()
    dtype_of(leaf, "a parameter")
    return numbers_of(leaf.cpu()).copy()


def name_of(step: Any) -> str:
    """Returns the name of a step for messages: that of the function, or of the module's class."""
    return getattr(step, "__name__", type(step).__name__)


# ---- the user's step as a function of (x, memory, params, ...) ---------------------------------------------


@dataclass(frozen=True)
class OfFunction:
    """Step made of a user's function on tensors, called by position: its parameters may have any names."""

    step: Function

    def __call__(self, x: Any, memory: Any, params: Any, **further: Any) -> Any:
        """Calls the function; returns the output and the next memory. further: statics and index, if any.

        Raises `StepError`, in place of an error of the function's own lines that a name is not there, with
        the names that are.
        """
        try:
            return self.step(x, memory, params, **further)
        except (KeyError, TypeError) as error:
            is_name = isinstance(error, KeyError) or "indices must be integers" in str(error)
            if not (is_name and is_of_user(error)):
                raise
            values = x, memory, params, further.get("statics")
            pairs = zip((*argument_names(self.step, ARGUMENTS), "statics"), values, strict=True)
            several = [pair for pair in pairs if isinstance(pair[1], dict | list | tuple)]
            held = "".join(f"; {held_by(name, value)}" for name, value in several)
            what = f"reads {error}, which is not there" if isinstance(error, KeyError) else f"fails: {error}"
            missing = StepError(f"the step {what}{held}")
            raise missing.with_traceback(error.__traceback__) from None


def held_by(name: str, value: Any) -> str:
    """Returns the text for what an argument of a step holds: names of a dict, the count of a list."""
    if isinstance(value, dict):
        return f"`{name}` has {', '.join(map(str, cast('dict[Any, Any]', value))) or 'none'}"
    return f"`{name}` is {described(value)}, which is read by number, as {name}[0]"


@dataclass(frozen=True)
class OfModule:
    """Step made of a cell module: calls it as a function from (x, state) to (output, state).

    state: an example of its state, for the structure.
    """

    module: Any
    state: Any

    def __call__(self, x: Any, memory: Any, params: Any, **further: Any) -> tuple[Any, Any]:
        """Calls the module on x and the state `memory`, with `params` as its parameters and buffers; returns
        output and next state.

        If the module returns the state alone, the output is its first tensor. Raises `StepError` unless it
        returns the state, or (output, state). further: statics (values that each sequence has once) and the
        index of the step, if the module takes them.
        """
        wanted = skeleton(self.state)
        parameters = {name: params[first] for name, first in first_names(self.module).items()}
        output = torch.func.functional_call(self.module, parameters, (x, memory), further, tie_weights=False)
        if skeleton(arranged(output, self.state)) == wanted:
            return leaves(arranged(output, self.state))[0], output
        pair = cast("tuple[Any, ...]", output)
        if isinstance(output, tuple) and len(pair) == 2 and skeleton(arranged(pair[1], self.state)) == wanted:
            return pair
        raise StepError(
            f"{type(self.module).__name__} is given the state {wanted} and gives {skeleton(output)}; "
            "a cell gives the new state, or (output, state)"
        )


def tensors_of(module: Any) -> list[tuple[str, Any]]:
    """Lists the parameters and buffers of a module as (name, tensor), tied ones once."""
    return [*module.named_parameters(), *module.named_buffers()]


def first_names(module: Any) -> dict[str, str]:
    """Maps each name of a parameter or buffer of a module to the first name of the same tensor: tied tensors
    have several names, and a step has them once.
    """
    first = {id(tensor): name for name, tensor in tensors_of(module)}
    names: dict[str, str] = {}
    for inner, member in module.named_modules():
        for kind in (member.named_parameters, member.named_buffers):
            for name, tensor in kind(recurse=False, remove_duplicate=False):
                names[f"{inner}.{name}" if inner else name] = first[id(tensor)]
    return names
