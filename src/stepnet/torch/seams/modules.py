"""The layers of transformers in a model: which seams each has, and how they are put in and taken out.

    module.__class__ = MambaMixer   ->   a class derived from MambaMixer, whose forward reads our functions

The layer stays the same object, with its parameters, hooks and names. Others of its class are as before.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

from stepnet.torch.checks import dtypes_refused
from stepnet.torch.pytorch import pytorch
from stepnet.torch.recording import is_recorded
from stepnet.torch.seams.check import difference, layer_difference
from stepnet.torch.seams.layers import LAYERS
from stepnet.torch.seams.lengths import with_lengths
from stepnet.torch.seams.rebound import globals_read, innermost, is_rebindable, rebound
from stepnet.torch.seams.table import FUNCTIONS, LEFT, METHODS, PACKAGE, STATES, WHOLE, Seam
from stepnet.torch.seams.tokens import KEPT, with_tokens
from stepnet.torch.untraced import untraced

torch: Any = pytorch("torch")
PACKED = ("cu_seqlens", "seq_idx")
"""Arguments of sequences end to end in one row, which transformers refuses without its kernels."""
TOKENS = "single tokens run part by part"


@dataclass(frozen=True)
class Seams:
    """The seams of a class of layers, functions that stepnet can replace. False for a class that has none.

    Attributes:
        run: The seams that stepnet runs, by name.
        left: The reasons why other seams are left, by name; the name of the class stands for the whole class.
        tokens: Whether a single token with a cache runs as one step of the whole layer.
    """

    run: dict[str, Seam] = field(default_factory=dict[str, Seam])
    left: dict[str, str] = field(default_factory=dict[str, str])
    tokens: bool = False

    def __bool__(self) -> bool:
        """Tells whether stepnet runs anything in the class."""
        return bool(self.run) or self.tokens


@functools.cache
def seams_of(kind: Any) -> Seams:
    """Finds the seams of a class of layers, and compares each with stepnet's function. Cached by class."""
    if not any(base.__module__.startswith(PACKAGE) for base in kind.__mro__):
        return Seams()
    readers = [base for base in kind.__mro__ if reads(base.__dict__.get("forward"))]
    if readers and readers[0].__dict__["forward"] is not kind.forward:
        why = f"it overrides the forward of {readers[0].__name__}, and may compute something else"
        return Seams({}, {kind.__name__: why})
    if readers and not is_rebindable(kind.forward):
        return Seams({}, {kind.__name__: "its forward is wrapped in a function that stepnet cannot inspect"})
    run, left = dict[str, Seam](), dict[str, str]()
    for name, theirs, seam, owner in [*functions(kind), *methods(kind)]:
        if (why := difference(innermost(theirs), seam, owner)) is None:
            run[name] = seam
        else:
            left[name] = f"this version of transformers has a different function: {why}"
    left |= {name: why for name, why in LEFT.items() if name in reads(kind.forward)}
    has_tokens = kind.__name__ in LAYERS and kind.__module__.startswith(PACKAGE)
    if has_tokens and (why := layer_difference(kind)) is not None:
        left["forward"] = f"{TOKENS}, {why}"
        has_tokens = False
    return Seams(run, left, has_tokens)


def reads(function: Any) -> set[str]:
    """Returns which functions of the tables a method reads as globals; empty outside of transformers'
    files.
    """
    inner = innermost(function)
    if not str(getattr(inner, "__module__", "")).startswith(PACKAGE) or not hasattr(inner, "__code__"):
        return set()
    return {name for name in globals_read(function) if name in FUNCTIONS or name in WHOLE or name in LEFT}


def functions(kind: Any) -> list[tuple[str, Any, Seam, None]]:
    """Lists the functions that a class's forward reads and stepnet has, as (name, theirs, seam, None)."""
    own = innermost(kind.forward).__globals__
    return [
        (name, own[name], FUNCTIONS[name], None) for name in sorted(reads(kind.forward) & FUNCTIONS.keys())
    ]


def methods(kind: Any) -> list[tuple[str, Any, Seam, Any]]:
    """Lists the methods of a class that stepnet has, as (name, theirs, seam, the class that defines it)."""
    parts = ((*name.split("."), seam) for name, seam in METHODS.items())
    return [
        (name, getattr(kind, name), seam, base)
        for owner, name, seam in parts
        for base in kind.__mro__
        if base.__name__ == owner
    ]


def without_seams(kind: Any) -> str | None:
    """Returns the reason why a recurrent class of layers without seams is left; None for other classes."""
    members: list[Any] = [member for base in kind.__mro__ for member in base.__dict__.values()]
    every = {name for member in members for name in names_in_code(member)}
    return next((why for name, why in STATES.items() if name in every), None)


def names_in_code(member: Any) -> tuple[str, ...]:
    """Returns the names that a method's code uses; empty for other members of a class."""
    code = getattr(innermost(member), "__code__", None)
    return () if code is None else code.co_names


def tokens_left(module: Any) -> str | None:
    """Returns the reason why an accelerated layer runs its tokens part by part; None if it runs each as one
    step, or its class never does.
    """
    kind: Any = cast("Any", type(module)).stepnets
    why = LAYERS[kind.__name__].refusal(module) if seams_of(kind).tokens else None
    return None if why is None else f"{TOKENS}, {why}"


def refusal(module: Any, holder: Any) -> str | None:
    """Returns the reason why a layer with seams cannot be accelerated now; None if it can.

    holder: the module that contains the layer, and its parameters if the layer has none.
    """
    if hasattr(cast("Any", type(module)), "stepnets"):
        return "it is stepnet's already"
    own = list(module.parameters()) or list(holder.parameters())
    places = {tensor.device.type for tensor in own if tensor.device.type != "cpu"}
    if places:
        return f"its parameters are on {', '.join(sorted(places))}: the seams are run on the CPU"
    return dtypes_refused(own)


# ---- putting them in and taking them out -------------------------------------------------------------------


@functools.cache
def accelerated(kind: Any) -> Any:
    """Derives a class from a class of layers, whose forward and methods call stepnet's functions. Cached by
    class.
    """
    known = seams_of(kind)
    own = innermost(kind.forward).__globals__
    named = reads(kind.forward)
    others = {name: standing_in(seam, own[name]) for name, seam in known.run.items() if name in named}
    others |= {name: without_kernel(own[name]) for name in named & WHOLE}
    members: dict[str, Any] = {
        name: standing_in(seam, getattr(kind, name)) for name, seam in known.run.items() if name not in named
    }
    if others or known.tokens:
        forward = with_lengths(rebound(kind.forward, others)) if others else kind.forward
        forward = with_tokens(kind.__name__, forward) if known.tokens else forward
        members["forward"] = out_of_graphs(forward, kind.forward)
    members |= {"__module__": kind.__module__, "__qualname__": kind.__qualname__, "__doc__": kind.__doc__}
    return type(kind.__name__, (kind,), {**members, "__reduce_ex__": reduced, "stepnets": kind})


def out_of_graphs(ours: Callable[..., Any], theirs: Callable[..., Any]) -> Any:
    """Makes a forward that is transformers' own while a graph is recorded, and stepnet's at other times.

    torch.compile looks up globals in a function's file, and would not find stepnet's.
    """

    @functools.wraps(theirs)
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        return (theirs if is_recorded() else ours)(self, *args, **kwargs)

    return forward


def reduced(module: Any, protocol: int) -> Any:
    """Implements `__reduce_ex__`: a copy of an accelerated layer is made of its class of transformers."""
    state = {name: value for name, value in module.__getstate__().items() if name != KEPT}
    return made_anew, (cast("Any", type(module)).stepnets,), state


def made_anew(kind: Any) -> Any:
    """Makes an empty accelerated layer of a class of transformers, for unpickling."""
    derived = accelerated(kind)
    return derived.__new__(derived)


def standing_in(seam: Seam, theirs: Callable[..., Any]) -> Any:
    """Makes the function that a layer calls in place of a function of transformers.

    It calls transformers' own function on other devices than the CPU, in graphs of torch.compile,
    torch.export and torch.jit, and for sequences packed into one row, which transformers refuses.
    """

    @functools.wraps(theirs)
    def called(*args: Any, **kwargs: Any) -> Any:
        if is_elsewhere(args, kwargs) or not seam.runs(*args, **kwargs):
            return theirs(*args, **kwargs)
        names = known_arguments(seam.ours)
        return untraced(seam.ours)(*args, **{name: value for name, value in kwargs.items() if name in names})

    return called


def without_kernel(theirs: Callable[..., Any]) -> Any:
    """Wraps a kernel that computes a whole layer: on the CPU it returns None, as if there were no kernel."""

    @functools.wraps(theirs)
    def whole(*args: Any, **kwargs: Any) -> Any:
        return theirs(*args, **kwargs) if is_elsewhere(args, kwargs) else None

    return whole


def is_elsewhere(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Tells whether a call must run transformers' code: while a graph is recorded, off the CPU, or packed
    sequences.
    """
    if is_recorded():
        return True
    if any(kwargs.get(name) is not None for name in PACKED):
        return True
    values = (*args, *kwargs.values())
    return any(isinstance(value, torch.Tensor) and value.device.type != "cpu" for value in values)


@functools.cache
def known_arguments(function: Callable[..., Any]) -> frozenset[str]:
    """Returns the names of a function's arguments."""
    return frozenset(function.__code__.co_varnames[: function.__code__.co_argcount])
