"""The patch of a layer of transformers: which of its functions stepnet runs, and the class that runs them.

    module.__class__ = MambaMixer   ->   a class derived from it, whose forward reads stepnet's functions

The layer stays the same object, with its parameters, hooks and names. Others of its class are not changed.
"""

import functools
from collections.abc import Callable
from dataclasses import field
from typing import Any, cast

from stepnet.compiler.values.records import dataclass
from stepnet.torch.arrays import HALVES
from stepnet.torch.patches import Origin, Patch, Patched
from stepnet.torch.patches.transformers.check import argument_names, difference, layer_difference
from stepnet.torch.patches.transformers.lengths import with_lengths
from stepnet.torch.patches.transformers.rebind import globals_read, innermost, is_rebindable, rebound
from stepnet.torch.patches.transformers.records import FILES, FunctionPatch
from stepnet.torch.patches.transformers.scan import ENGINE, on_engine
from stepnet.torch.patches.transformers.states import unknown_layers, without_functions
from stepnet.torch.patches.transformers.table import FUNCTIONS, LAYERS, LEFT, METHODS, WHOLE
from stepnet.torch.patches.transformers.tokens import TOKEN, with_tokens
from stepnet.torch.pytorch import pytorch
from stepnet.torch.recording import is_recorded, untraced
from stepnet.torch.sequences import HOST, dtypes_refused, runs_on

torch: Any = pytorch("torch")
PACKED = ("cu_seqlens", "seq_idx")
"""Arguments of sequences end to end in one row, which transformers refuses without its kernels."""
PART_BY_PART = "single tokens run part by part"
HALF_TOKENS = "single tokens of 16-bit models run in transformers' own functions, which take less time"
TIME = "t"
"""The letter of the axis of steps in the sizes of a `FunctionPatch`."""


@dataclass(frozen=True)
class ClassPatch:
    """The functions of a class of layers that stepnet replaces; as a bool it is False if there are none.

    Attributes:
        run: The table entries of these functions, by name.
        left: The reasons why other functions are not replaced, by name; under the name of the class a reason
            for all.
        tokens: Whether a single token with a cache runs as one step of the whole layer.
    """

    run: dict[str, FunctionPatch] = field(default_factory=dict[str, FunctionPatch])
    left: dict[str, str] = field(default_factory=dict[str, str])
    tokens: bool = False

    def __bool__(self) -> bool:
        """Tells whether stepnet replaces any function of the class."""
        return bool(self.run) or self.tokens


def patched(module: Any, holder: Any) -> Patched | None:
    """Returns how `accelerate` is to replace a layer: by which class, and why functions are left unchanged.
    None for a layer that does not run over steps (of time). For a model, the layers of which only its
    configuration says that they run over steps.

    holder: the module that contains the layer. Its parameters count for a layer without parameters.
    """
    kind = cast("Any", type(module))
    known = class_patch(kind)
    if not known:
        why = None if known.left else without_functions(kind)
        left = (known.left if why is None else {"": why}) or unknown_layers(module, is_known)
        return Patched(None, left) if left else None
    parameters = list(module.parameters()) or list(holder.parameters())
    if (why := refusal(parameters)) is not None:
        return Patched(None, {"": why})
    left, is_half = known.left, any(tensor.dtype in HALVES for tensor in parameters)
    if known.tokens:
        why = LAYERS[kind.__name__].refusal(module)
        left = left if why is None else left | {"forward": f"{PART_BY_PART}, {why}"}
    elif is_half and not all(row.is_half_refused for row in known.run.values()):
        left = left | {"forward": HALF_TOKENS}
    return Patched(accelerated(kind, is_half), left)


PATCH = Patch("layer of transformers that runs over steps", patched)


@functools.cache
def class_patch(kind: Any) -> ClassPatch:
    """Finds the functions of a class of layers (`kind`) that stepnet can replace, and compares each with
    stepnet's. Returns a `ClassPatch`: the table entries of the functions that are equal, by name, the reasons
    against the others, and whether single tokens can run as one step.

    It is empty for a class that is not derived from one of transformers' models, and has only the reason for
    one that overrides the forward of the class that it is derived from.
    """
    if not any(base.__module__.startswith(FILES) for base in kind.__mro__):
        return ClassPatch()
    readers = [base for base in kind.__mro__ if is_replaced(base)]
    if readers and readers[0].__dict__["forward"] is not kind.forward:
        why = f"it overrides the forward of {readers[0].__name__}, and may compute something else"
        return ClassPatch({}, {kind.__name__: why})
    if readers and not is_rebindable(kind.forward):
        return ClassPatch(
            {}, {kind.__name__: "its forward is wrapped in a function that stepnet cannot inspect"}
        )
    run, left = dict[str, FunctionPatch](), dict[str, str]()
    for name, theirs, row, owner in [*functions(kind), *methods(kind)]:
        if (why := difference(innermost(theirs), row, owner)) is None:
            run[name] = row
        else:
            left[name] = f"this version of transformers has a different function: {why}"
    left |= {name: why for name, why in LEFT.items() if name in reads(kind.forward)}
    has_tokens = kind.__name__ in LAYERS and kind.__module__.startswith(FILES)
    if has_tokens and (why := layer_difference(kind)) is not None:
        left["forward"] = f"{PART_BY_PART}, {why}"
        has_tokens = False
    return ClassPatch(run, left, has_tokens)


def is_replaced(base: Any) -> bool:
    """Tells whether a class has a `forward` that stepnet replaces, or that calls replaced functions."""
    forward = base.__dict__.get("forward")
    return forward is not None and (f"{base.__name__}.forward" in METHODS or bool(reads(forward)))


def reads(function: Any) -> set[str]:
    """Returns the names of the functions of transformers that a method reads as globals and stepnet replaces
    or knows, to find what stepnet can replace in a class.
    """
    inner = innermost(function)
    if not str(getattr(inner, "__module__", "")).startswith(FILES) or not hasattr(inner, "__code__"):
        return set()
    return {name for name in globals_read(function) if name in FUNCTIONS or name in WHOLE or name in LEFT}


def functions(kind: Any) -> list[tuple[str, Any, FunctionPatch, None]]:
    """Lists the functions that the forward of a class (`kind`) calls and stepnet replaces.

    Each is (name, the function of transformers, table entry of the replacement, None).
    """
    own = innermost(kind.forward).__globals__
    return [
        (name, own[name], FUNCTIONS[name], None) for name in sorted(reads(kind.forward) & FUNCTIONS.keys())
    ]


def methods(kind: Any) -> list[tuple[str, Any, FunctionPatch, Any]]:
    """Lists the methods of a class (`kind`) that stepnet replaces.

    Each is (name, the method of transformers, table entry of the replacement, the class that defines it).
    """
    parts = ((*name.split("."), row) for name, row in METHODS.items())
    return [
        (name, getattr(kind, name), row, base)
        for owner, name, row in parts
        for base in kind.__mro__
        if base.__name__ == owner
    ]


def is_known(kind: Any) -> bool:
    """Tells whether stepnet knows a class of layers: replaces it, did so, or says why not."""
    if hasattr(kind, "stepnets") or issubclass(kind, torch.nn.RNNBase | torch.nn.RNNCellBase):
        return True
    known = class_patch(kind)
    return bool(known) or bool(known.left) or without_functions(kind) is not None


def refusal(parameters: list[Any]) -> str | None:
    """Returns the reason why a layer with these parameters cannot be accelerated now, their device or their
    dtype; None if it can.
    """
    devices = {tensor.device for tensor in parameters}
    places = {device.type for device in devices if not runs_on(device, "auto")}
    if places:
        where = ", ".join(sorted(places))
        return (
            f"its parameters are on {where}: stepnet runs this layer on the CPU and on GPUs that its engine "
            '"cuda" takes; move the model there first'
        )
    return dtypes_refused(parameters)


# ---- the derived class -------------------------------------------------------------------------------------


@functools.cache
def accelerated(kind: Any, is_half: bool = False) -> Any:
    """Derives a class from a class of layers of transformers; cached. Its forward and methods call stepnet's
    functions in place of transformers' own. A call with a single token runs as one step of the whole layer if
    the table `LAYERS` lists the class.

    kind: the class of transformers, such as `MambaMixer`. is_half: whether the report describes a 16-bit
    layer, whose single tokens run in transformers' functions until it is converted to float32.
    """
    known = class_patch(kind)
    own = innermost(kind.forward).__globals__
    names_read = reads(kind.forward)
    others = {name: in_place(row, own[name]) for name, row in known.run.items() if name in names_read}
    others |= {name: without_kernel(own[name]) for name in names_read & WHOLE}
    ours: dict[str, Any] = {
        name: in_place(row, getattr(kind, name)) for name, row in known.run.items() if name not in names_read
    }
    if others:
        ours["forward"] = with_lengths(rebound(kind.forward, others))
    if known.tokens:
        ours["forward"] = with_tokens(kind.__name__, ours.get("forward", kind.forward))
    members = {name: with_engine(method, getattr(kind, name)) for name, method in ours.items()}
    members |= {"__module__": kind.__module__, "__qualname__": kind.__qualname__, "__doc__": kind.__doc__}
    runs = [name for name, row in known.run.items() if not (is_half and row.is_token)]
    origin = Origin(kind, (*runs, *["tokens"] * known.tokens), (TOKEN,))
    own = {"__reduce_ex__": reduced, "stepnets": origin, "engine": "auto"}
    return type(kind.__name__, (kind,), members | own)


def with_engine(ours: Callable[..., Any], theirs: Callable[..., Any]) -> Any:
    """Makes a method that runs `ours` on the engines of the layer, and transformers' own (`theirs`) while a
    graph is recorded.

    torch.compile looks up globals in a function's file, and would not find stepnet's.
    """

    @functools.wraps(theirs)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        """Calls transformers' method while a graph is recorded (torch.compile and the like), else stepnet's,
        on the engine of the layer.
        """
        if is_recorded():
            return theirs(self, *args, **kwargs)
        if self.engine == "auto":
            return ours(self, *args, **kwargs)
        with on_engine(self.engine):
            return ours(self, *args, **kwargs)

    return method


def reduced(module: Any, protocol: int) -> Any:
    """Implements `__reduce_ex__` for pickle, which cannot find the derived class of a layer.

    Returns `restored`, its argument (the class of transformers, from which it derives the class again), and
    the layer's state. This is without prepared calls (compiled code with its memory for one kind of call).

    module: the layer. protocol: pickle's protocol, which makes no difference.
    """
    origin: Origin = cast("Any", type(module)).stepnets
    state = {name: value for name, value in module.__getstate__().items() if name not in origin.state}
    return restored, (origin.theirs,), state


def restored(kind: Any) -> Any:
    """Makes a layer without state, of stepnet's class for the class `kind` of transformers, for pickle."""
    derived = accelerated(kind)
    return derived.__new__(derived)


def in_place(row: FunctionPatch, theirs: Callable[..., Any]) -> Any:
    """Makes the function that a layer calls in place of one of transformers. row: the table entry of that.

    It calls transformers' own (`theirs`) on devices that the engines do not take, in graphs of torch.compile,
    torch.export and torch.jit, for sequences packed into one row, which transformers refuses, and for calls
    that the table entry leaves to it.
    """

    @functools.wraps(theirs)
    def called(*args: Any, **kwargs: Any) -> Any:
        """Calls stepnet's function in place of transformers' own, with the arguments that it takes; calls
        transformers' own where stepnet's cannot run or is slower.
        """
        if is_half_token(row, args, kwargs) or is_elsewhere(args, kwargs):
            return theirs(*args, **kwargs)
        if row.runs is not None and not row.runs(*args, **kwargs):
            return theirs(*args, **kwargs)
        names = argument_names(row.ours)
        return untraced(row.ours)(*args, **{name: value for name, value in kwargs.items() if name in names})

    return called


@functools.cache
def steps_of(row: FunctionPatch) -> tuple[int, str, int] | None:
    """Finds the number of steps of a call: the place and name of an argument and its axis of steps, from the
    table entry of the function; None for a function that runs single tokens alone.
    """
    words = () if row.is_token else (word.rpartition(":") for word in row.sizes.split())
    names = argument_names(row.ours)
    places = ((names.index(name), name, letters.index(TIME)) for name, _, letters in words if TIME in letters)
    return next(places, None)


def is_half_token(row: FunctionPatch, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Tells whether a call has 16-bit tensors and a single step, for which transformers' own function takes
    less time: stepnet would cast all tensors. row: the table entry of the function.
    """
    values = (*args, *kwargs.values())
    if row.is_half_refused or not any(
        isinstance(value, torch.Tensor) and value.dtype in HALVES for value in values
    ):
        return False
    steps = steps_of(row)
    if steps is None:
        return True
    place, name, axis = steps
    return (args[place] if place < len(args) else kwargs[name]).shape[axis] == 1


def without_kernel(theirs: Callable[..., Any]) -> Any:
    """Wraps a function of transformers (`theirs`) that runs a whole layer as one call of a GPU kernel: where
    stepnet runs on the CPU, the wrapper returns None, so that the layer calls its separate functions, which
    stepnet replaces.
    """

    @functools.wraps(theirs)
    def whole(*args: Any, **kwargs: Any) -> Any:
        """Returns None where stepnet runs on the CPU; calls the kernel otherwise."""
        is_on_gpu = any(device.type != HOST for device in devices_in(args, kwargs))
        return theirs(*args, **kwargs) if is_on_gpu or is_elsewhere(args, kwargs) else None

    return whole


def is_elsewhere(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Tells whether transformers' own code must run a call with these arguments: while a graph is recorded,
    on devices that the engines do not take, or for packed sequences.
    """
    if is_recorded():
        return True
    if any(kwargs.get(name) is not None for name in PACKED):
        return True
    return not all(runs_on(device, ENGINE.get()) for device in devices_in(args, kwargs))


def devices_in(args: tuple[Any, ...], kwargs: dict[str, Any]) -> set[Any]:
    """Returns the devices of the tensors among the arguments of a call."""
    return {value.device for value in (*args, *kwargs.values()) if isinstance(value, torch.Tensor)}
