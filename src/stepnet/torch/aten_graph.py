"""A function on tensors as a graph of ATen operations, in which numbers of rows and steps are symbols.

The function runs once, on tensors with shapes but no numbers, under `make_fx` of `torch.fx`. Operations in
place become operations that give new values, and composed operations become the smaller ones that they
consist of.
"""

import inspect
import logging
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

from stepnet.compiler.net.types import CONST, ROWS, Type
from stepnet.compiler.trace import draws
from stepnet.compiler.values.fork_guard import RECORDS
from stepnet.compiler.values.records import dataclass
from stepnet.errors import StepError, StepnetError
from stepnet.importers.aten.graph import AtenGraph
from stepnet.torch.aten_nodes import Converted, in_words
from stepnet.torch.lines import is_of_user, is_users, line_of_call, line_of_error
from stepnet.torch.pytorch import pytorch
from stepnet.torch.recording import TRACES
from stepnet.torch.rewritten import REWRITTEN, Rewritten, refused

torch: Any = pytorch("torch")
fake_tensors: Any = pytorch("torch._subclasses.fake_tensor")
dispatch: Any = pytorch("torch.utils._python_dispatch")
functional: Any = pytorch("torch._subclasses.functional_tensor")
fx_traceback: Any = pytorch("torch.fx.traceback")
proxies: Any = pytorch("torch.fx.experimental.proxy_tensor")
shapes: Any = pytorch("torch.fx.experimental.symbolic_shapes")
sym_node: Any = pytorch("torch.fx.experimental.sym_node")
decompositions: Any = pytorch("torch._decomp")

FAKE = (functional.FunctionalTensor, fake_tensors.FakeTensor)
# Example numbers for symbolic sizes, which PyTorch needs; code that depends on them is refused.
HINTS = {"rows": 11, "sequences": 11, "steps": 13}

TRUTHS = [
    getattr(kind, name).__code__ for kind in (torch.SymBool, torch.SymInt) for name in ("__bool__", "__int__")
]
"""PyTorch's methods that Python calls to read the value of a symbol, or of a comparison with one."""
SYMBOLIC = (__file__, shapes.__file__, sym_node.__file__)
"""The files whose frames lie between these methods and `StrictShapeEnv.evaluate_expr` on the stack."""

CHECKED = torch.ops.aten._linalg_check_errors.default
DRAWN = (torch.nn.functional.gumbel_softmax, torch.Tensor.exponential_)
"""Functions that draw random numbers and that PyTorch cannot trace with symbolic sizes."""
FILLED = (torch.rand, torch.randn, torch.randint)
"""Functions that draw random numbers and that PyTorch cannot trace if they get a generator."""


def without_generator(function: Any) -> Callable[..., Any]:
    """Wraps a function of PyTorch that draws random numbers, for traces: a call with a `generator`, which
    PyTorch cannot trace, raises `StepError`.
    """
    refuse_it = refused(f"{function.__name__} is not an operation of a step: {draws.ADVICE}")

    def rule(*arguments: Any, generator: Any = None, **options: Any) -> Any:
        """Calls the function; raises `StepError` if a generator is given."""
        return function(*arguments, **options) if generator is None else refuse_it()

    return rule


RANDOM = {
    **{one: refused(f"{one.__name__} is not an operation of a step: {draws.ADVICE}") for one in DRAWN},
    **{one: without_generator(one) for one in FILLED},
}

COMPLEX = (torch.complex, torch.polar, torch.view_as_complex, torch.stft)
"""Functions with complex results, besides those of `torch.fft`."""
TRANSFORMS = [
    getattr(torch.fft, name) for name in torch.fft.__all__ if name.endswith(("fft", "fft2", "fftn"))
]


def of_constants(function: Any) -> Callable[..., Any]:
    """Wraps a function of PyTorch that makes complex numbers, for traces: raises `StepError` where PyTorch
    cannot trace it, as for a value of the step, and not for a constant.
    """

    def rule(*arguments: Any, **options: Any) -> Any:
        """Calls the function; raises `StepError`, with the reason, in place of an error about sizes."""
        try:
            return function(*arguments, **options)
        except StepError:
            name = function.__name__
            raise StepError(f"{name} makes complex numbers, and the values of a step are real") from None

    return rule


REAL = {function: of_constants(function) for function in (*COMPLEX, *TRANSFORMS)}

UNKNOWN = {
    "rows": (
        "which a step does not know: let shapes broadcast, and write -1 or x.shape[0] in a view; each tensor "
        "of the example is [rows, features...]"
    ),
    "sequences": (
        "which a model does not know: let shapes broadcast, and write x.shape[0] for len(x), and -1 or "
        "x.shape[0] in a view"
    ),
    "steps": (
        "which differs between sequences: take all steps, the first, x[:, 0], or the last, x[:, -1]; a "
        "loop over steps is a recurrence, as torch.nn.GRU or a stepnet.torch.Recurrence of the cell"
    ),
}
"""For each symbol, why a step or model may not depend on its value, and the remedy: the end of a message."""


class StrictShapeEnv(shapes.ShapeEnv):
    """PyTorch's shape environment, in which nothing may depend on the number of rows or steps, so that one
    graph holds for all numbers of them.
    """

    def __init__(self) -> None:
        """Starts without symbols. `names`: the word of each in messages. `sizes`: the size of each word."""
        super().__init__()  # type: ignore[misc]
        self.names, self.sizes = dict[Any, str](), dict[str, Any]()

    def evaluate_expr(self, *arguments: Any, **options: Any) -> Any:
        """Evaluates an expression of sizes for PyTorch, which passes the `arguments`; raises `StepError` if
        it depends on the number of rows or steps, for any of which the graph must hold.
        """
        known = len(self.guards)
        value = shapes.ShapeEnv.evaluate_expr(self, *arguments, **options)
        if len(self.guards) > known:
            raise self.dependence_error(self.guards[-1].expr)
        # PyTorch assumes that each symbol is at least 2, so x.shape[0] == 1 is False without a guard. PyTorch
        # itself may ask this, as shapes that broadcast for 2 broadcast for any number; the user may not.
        if arguments[0].free_symbols and is_read_by_user():
            raise self.dependence_error(arguments[0])
        return value

    def dependence_error(self, expression: Any) -> StepError:
        """Makes the error for code that depends on the number of rows or steps. expression: the expression of
        sizes that the code depends on. The message names one of its symbols, steps before rows.
        """
        name = max(self.names[symbol] for symbol in expression.free_symbols if symbol in self.names)
        kind, _, is_derived = name.partition("[")
        after = " after a convolution or pooling" if is_derived else ""
        return StepError(f"its operations depend on the number of {kind}{after}, {UNKNOWN[kind]}")

    def size_of(self, name: str) -> Any:
        """Returns the symbolic size (PyTorch's `SymInt`) of this name for the tensors of a trace. name:
        "rows", "sequences", "steps", or the name of an axis derived from the steps.
        """
        if name not in self.sizes:
            self.sizes[name] = self.new_symbol(name)
        return self.sizes[name]

    def new_symbol(self, name: str) -> Any:
        """Makes a new symbolic size (PyTorch's `SymInt`) for the tensors of a trace, and notes its symbol
        under the word `name`, such as "rows", "sequences" or "steps".
        """
        # Imported late: PyTorch's compiler takes as long as stepnet.torch, and a trace imports it anyway.
        hint, source = HINTS[name.split("[")[0]], pytorch("torch._dynamo.source").ConstantSource(name)
        symbol = self.create_symbol(hint, source=source, dynamic_dim=shapes.DimDynamic.DYNAMIC)
        self.names[symbol] = name
        return self.create_symintnode(symbol, hint=hint, source=source)


def is_read_by_user() -> bool:
    """Tells whether the user's code reads the value of a symbolic size now, such as by `if x.shape[0] == 1`.

    It inspects the calls on the stack, from inside PyTorch's code for symbols: its caller must be `__bool__`
    or `__int__` of a symbol, called by the user. PyTorch itself may read such values, inside its operations.
    """
    frame: Any = inspect.currentframe()
    while frame.f_code.co_filename in SYMBOLIC:
        frame = frame.f_back
    is_read = frame.f_code in TRUTHS
    while frame.f_code in TRUTHS:
        frame = frame.f_back
    return is_read and is_users(frame.f_code)


class UnchangedTensors(dispatch.TorchDispatchMode):
    """Context that refuses a step which changes, in place, a tensor that it closes over."""

    def __torch_dispatch__(
        self, operation: Any, types: Any, arguments: Any = (), options: dict[str, Any] | None = None
    ) -> Any:
        """Runs an operation of PyTorch; raises `StepError` if it writes to a tensor that is not traced."""
        formal = operation._schema.arguments
        values = dict(zip((argument.name for argument in formal), arguments, strict=False)) | (options or {})
        for argument in formal:
            value = values.get(argument.name)
            written = argument.alias_info is not None and argument.alias_info.is_write
            if written and isinstance(value, torch.Tensor) and not isinstance(value, FAKE):
                raise in_place_error("a tensor that it closes over")
        if operation is CHECKED:  # PyTorch cannot trace it; what it checks is refused by its name
            return None
        return operation(*arguments, **(options or {}))


@dataclass(frozen=True)
class TensorArgument:
    """Description of one tensor argument of a function that is to be traced.

    name: for messages.
    sizes: the size of each axis: an integer, or "rows", "sequences" or "steps" for an unknown number.
    is_parameter: whether the function must not change the tensor in place.
    """

    name: str
    sizes: tuple[int | str, ...]
    dtype: str
    is_parameter: bool

    @classmethod
    def of(cls, name: str, type_: Type) -> "TensorArgument":
        """Describes a value of a step by its name and its type in the net; raises `StepError` for inner
        sequences.

        A value that is the same for all rows (sequences) is marked as a parameter; others get a first axis
        "rows".
        """
        if type_.extent not in (CONST, ROWS):
            raise StepError(f"{name} holds inner sequences, which a step written with PyTorch cannot take")
        lead = () if type_.extent == CONST else ("rows",)
        return cls(name, (*lead, *type_.shape), type_.dtype, type_.extent == CONST)


def graph_of(
    function: Callable[..., Any],
    arguments: Sequence[TensorArgument],
    replaced: Mapping[Callable[..., Any], Callable[..., Any]] = REWRITTEN,
    line: Callable[[], str] = line_of_call,
) -> AtenGraph:
    """Traces function(*tensors) to a graph of ATen operations, on tensors that have shapes but no numbers.

    arguments: the names, sizes and dtypes of the tensors.
    replaced: PyTorch's functions that are traced as other functions, with their replacements.
    line: returns the user's line in the current calls, for messages.

    Raises `StepError` for errors of PyTorch, for a function that depends on the value of a symbolic size, and
    for one that changes parameters.
    """
    environment = StrictShapeEnv()
    mode = fake_tensors.FakeTensorMode(shape_env=environment, allow_non_fake_inputs=True)
    mode.cache_enabled = False  # no hits, as each graph has its own symbols
    names = {size: None for argument in arguments for size in argument.sizes if isinstance(size, str)}
    numbers = {name: environment.size_of(name) for name in names or {"rows": None}}

    def watched(*tensors: Any) -> Any:
        """Calls the function that is traced, on PyTorch's functional tensors; raises `StepError` if it
        changed a parameter in place or drew random numbers.
        """
        token = TRACES.set(True)
        try:
            with Rewritten({**replaced, **RANDOM, **REAL}, line), UnchangedTensors():
                output = function(*tensors)
        finally:
            TRACES.reset(token)
        for tensor, argument in zip(tensors, arguments, strict=True):
            if argument.is_parameter and torch._functionalize_has_data_mutation(tensor.elem):
                raise in_place_error(f"`{argument.name}`")
        return output

    with RECORDS, mode, torch.no_grad(), silenced(fake_tensors.__name__), fx_traceback.preserve_node_meta():
        tensors = [
            torch.empty(
                [numbers[size] if isinstance(size, str) else size for size in argument.sizes],
                dtype=getattr(torch, argument.dtype),
            )
            for argument in arguments
        ]
        made = proxies.make_fx(
            functional.dispatch_functionalize(watched), decomposition_table=core_decompositions()
        )
        with messages(environment.names):
            module = made(*tensors)
    merge_permutes(module.graph)
    module.graph.eliminate_dead_code()
    return Converted(module, environment.names).graph()


@cache
def core_decompositions() -> dict[Any, Callable[..., Any]]:
    """Returns PyTorch's decompositions of operations into simpler ones, except for a few operations that
    stepnet computes itself.
    """
    aten = torch.ops.aten
    norms = [
        aten.native_group_norm,
        aten._native_batch_norm_legit.default,
        aten._native_batch_norm_legit_no_training,
    ]
    table = {**decompositions.core_aten_decompositions(), **decompositions.get_decompositions(norms)}
    # These are not decomposed: the simpler operations would compute constant indices, use dtypes that a step
    # lacks, join rows and positions in an axis, or hide that gradients stop.
    undivided = (aten.roll.default, aten.eye.default, aten.eye.m, aten.mv.default, aten.detach.default)
    return {operation: rule for operation, rule in table.items() if operation not in undivided}


@contextmanager
def messages(names: Mapping[Any, str]) -> Generator[None]:
    """Context that turns errors of PyTorch during a trace into a `StepError` with the user's line.

    names: for each symbolic size, the word (such as "rows") that replaces it in messages.
    """
    try:
        yield
    except StepError as error:
        text = str(error)
        raise (error if "\n  at " in text else StepError(f"{text}\n  at {line_of_error(error)}")) from None
    except (shapes.GuardOnDataDependentSymNode, fake_tensors.DataDependentOutputException) as error:
        raise StepError(
            "a step cannot branch on a value or read it as a number: every row may differ; use torch.where"
            f"\n  at {line_of_error(error)}"
        ) from error
    except StepnetError:
        raise
    except (RuntimeError, IndexError, TypeError, ValueError) as error:
        if isinstance(error, TypeError | ValueError) and is_of_user(error):
            raise
        message = in_words(str(error).split("\n")[0], names)
        if message.startswith(".numpy()"):
            message = f"{message.rstrip('.')}: a step written with PyTorch has torch.tanh for np.tanh"
        raise StepError(f"PyTorch refuses: {message}\n  at {line_of_error(error)}") from error


@contextmanager
def silenced(name: str) -> Generator[None]:
    """Context in which one of PyTorch's loggers (`name`) is silent; the errors that it logs are raised."""
    log = logging.getLogger(name)
    before, log.disabled = log.disabled, True
    try:
        yield
    finally:
        log.disabled = before


def in_place_error(what: str) -> StepError:
    """Makes the error for a step that changes a tensor in place. what: the text for the tensor."""
    return StepError(
        f"the step changes {what} in place, which would outlive the step: make it a memory, or call .eval() "
        "on a module that keeps statistics"
    )


def merge_permutes(graph: Any) -> None:
    """Simplifies a `torch.fx` graph in place: where a permutation of axes permutes the result of another
    permutation, it reads that one's operand instead, in the combined order.
    """
    permute = torch.ops.aten.permute.default
    for node in graph.nodes:
        if node.target is permute and node.args[0].target is permute:
            inner, order = node.args[0].args
            rank = len(order)
            node.args = (inner, [order[axis % rank] % rank for axis in node.args[1]])
