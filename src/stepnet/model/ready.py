"""Models of files that are ready for a call that an earlier process stored, and are made if more is asked.

    bytes of the file, versions, processor --key--> the call of some shape, with code and parameters
    another call, any attribute                     the model, made as without a stored call

A process that repeats the first call of an earlier one imports no net, no plan and no engine, which take
longer than the call. The stored call is the same machine code on the same words, so its results have the same
bits. `keeping.py` stores it.
"""

import operator
import os
import sys
from abc import ABC
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, cast

import numpy as np

from stepnet.compiler.disk import store
from stepnet.compiler.disk.data import Serializer
from stepnet.compiler.disk.folder import NotUsableError
from stepnet.compiler.disk.sources import package_version, sources
from stepnet.compiler.native.frozen import FrozenCall, FrozenKernel, FrozenResult, SingleArrayCall, ready_call
from stepnet.compiler.native.identity import VARIABLE, chosen_processor, processor_facts
from stepnet.compiler.values.fork_guard import IMPORTS
from stepnet.compiler.values.hashing import digest_of_texts
from stepnet.compiler.values.records import dataclass
from stepnet.compiler.values.structure import rebuilder

ONNX = ".onnx"
LARGEST = 2**22 + 2**16
"""The largest file that may have a model with ready-made code: one with at most 4 MiB of parameters."""
Make = Callable[[], Any]
DETERMINING = (
    *("compiler/disk", "compiler/values", "compiler/native", "compiler/net", "compiler/trace"),
    *("compiler/plan", "compiler/targets", "importers", "layout", "model", "onnx", "ragged"),
)
"""The folders whose modules determine a stored call: their sources are part of the key."""

LLVM = "llvmlite", "_version.py"
"""The package that writes machine code, and its file with the version of it and of LLVM."""


@dataclass(frozen=True)
class StoredCall:
    """A call of a model on one array, as it is stored.

    frozen: the call itself. shape, dtype: those of the array. structure: the structure of the results.
    """

    frozen: FrozenCall
    shape: tuple[int, ...]
    dtype: str
    structure: Any


FORM = Serializer(StoredCall, FrozenCall, FrozenKernel, FrozenResult)


class Keeper(NamedTuple):
    """Where the first call of a model is stored.

    key: its key in the disk cache. gives_final: whether a call of the model returns its memories.
    params: the parameters of the model: no call is stored after one of them was made writable.
    """

    key: str
    gives_final: bool
    params: Any


def loaded(ending: str, contents: bytes, make: Make) -> Any:
    """Returns the model of a file: one that is made when it is needed, if a call of it is stored.

    ending, contents: the kind of the file, and its bytes. make: makes the model of these bytes.
    """
    key = key_of(ending, contents)
    stored: StoredCall | None = None if key is None else store.value("call", key, FORM, is_needed=False)
    if stored is not None and (call := ready_call(stored.frozen)) is not None:
        return ReadyModel(
            SingleArrayCall([call], stored.shape, np.dtype(stored.dtype), rebuilder(stored.structure)), make
        )
    if len(contents) <= LARGEST and not settings_but("STEPNET_CACHE", VARIABLE):
        with IMPORTS:  # late: a stored call needs nothing of it
            from stepnet.compiler.native.ready_made import known_call
        if (call := known_call(contents, ending == ONNX)) is not None:
            return ReadyModel(call, make)
    known = store.COUNTS["hits"]
    model = make()
    # The process that reads the file has enough to do: its first call is stored by the next one.
    if key is not None and store.COUNTS["hits"] > known and is_of_file(model):
        model.programs.calls.keeper = Keeper(key, model.gives_final, model.params)
    return model


def settings_but(*others: str) -> list[tuple[str, str]]:
    """Lists the environment variables of stepnet but those that begin with one of `others`."""
    own = sorted(pair for pair in os.environ.items() if pair[0].startswith("STEPNET_"))
    return [pair for pair in own if not pair[0].startswith(others)]


def is_of_file(model: Any) -> bool:
    """Tells whether a file alone determines its model, which has its parameters itself: layers have not, and
    a graph may have weights in other files.
    """
    return hasattr(model, "params") and (model.gives_final or model.program.name is not None)


def key_of(ending: str, contents: bytes) -> str | None:
    """Computes the key of a file's stored call: of the bytes of the file, the sources, versions, settings and
    the processor. None if sources or LLVM are not found, or the system does not describe the processor.
    """
    others = settings_but("STEPNET_CACHE", VARIABLE)
    try:
        code, processor = f"{sources(*DETERMINING)} {package_version(*LLVM)}", processor_facts()
    except NotUsableError:
        return None
    if processor is None:
        return None
    settings = repr((chosen_processor(), others))
    return digest_of_texts(code, processor, sys.version, np.__version__, settings, ending, contents)


class KnownCalls(Protocol):
    """Calls of a model that is not made: the one that is stored, or those by ready-made code."""

    def run(self, given: Any) -> tuple[Any] | None:
        """Runs a call on an array; returns its results, or None, having done nothing, if it cannot."""
        ...

    def described(self) -> str | None:
        """Says which calls have run so, for `Model.explain`; None for those of the model's own code."""
        ...


class ReadyModel(ABC):  # noqa: B024 - as `Model`: objects turn from one class into the other
    """A model of a file that is not made yet. It runs the call that is stored, and becomes the model itself
    for everything else: any attribute, another call, `isinstance`, its text, a copy.
    """

    def __init__(self, known: KnownCalls, make: Make) -> None:
        """Takes the stored call, and the function that makes the model."""
        state_of(self).update(_known=known, _make=make)

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        """Runs the model; see `Model.__call__`."""
        known: KnownCalls | None = state_of(self).get("_known")
        if known is not None and len(arguments) == 1 and not options:
            results = known.run(arguments[0])
            if results is not None:
                return results[0]
        return become_model(self)(*arguments, **options)

    def __getattribute__(self, name: str) -> Any:
        """Returns an attribute of the model, also its class, for which `isinstance` asks, and its text."""
        return getattr(become_model(self), name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(become_model(self), name, value)

    def __delattr__(self, name: str) -> None:
        delattr(become_model(self), name)

    def __dir__(self) -> Any:
        return dir(become_model(self))

    def __repr__(self) -> str:
        return repr(become_model(self))

    def __str__(self) -> str:
        return str(become_model(self))

    def __reduce_ex__(self, protocol: Any) -> Any:
        return become_model(self).__reduce_ex__(protocol)


def asked_of_model(function: Callable[..., Any]) -> Callable[..., Any]:
    """Makes the special method by which a built-in function of a model is called, to be called on the model
    itself: few such functions take a model, and its class is in the message of the error.
    """

    def asked(ready: Any, *others: Any) -> Any:
        """Makes the model, and calls the function on it."""
        return function(become_model(ready), *others)

    return asked


def entered(model: Any) -> None:
    """Enters a model as a context, which none is: Python's error names its class."""
    with model:
        pass


def refused_by_model(ready: Any, *others: Any) -> Any:
    """Makes the model, and returns NotImplemented, as it does for any operator: Python's error names it."""
    become_model(ready)
    return NotImplemented


OPERATORS = "contains delitem getitem index invert neg pos setitem"
BINARY = "add and divmod floordiv ge gt le lshift lt matmul mod mul or pow rshift sub truediv xor"
"""Operators of Python by the names of their special methods, and those whose errors name both classes."""
for built_in in (abs, bool, bytes, complex, float, format, int, iter, len, next, reversed, round):
    setattr(ReadyModel, f"__{built_in.__name__}__", asked_of_model(built_in))
for name in OPERATORS.split():
    setattr(ReadyModel, f"__{name}__", asked_of_model(getattr(operator, f"__{name}__")))
for name in ("__enter__", "__exit__"):
    setattr(ReadyModel, name, asked_of_model(entered))
for name in BINARY.split():
    setattr(ReadyModel, f"__{name}__", refused_by_model)
    setattr(ReadyModel, f"__r{name}__", refused_by_model)


def state_of(model: Any) -> dict[str, Any]:
    """Returns the attributes that a model has now, whether it is made or not."""
    return object.__getattribute__(model, "__dict__")


def become_model(ready: Any) -> Any:
    """Makes the model that an object stands for, and turns the object into it: it gets the attributes and the
    class of the model, at once for all threads. Returns the object.
    """
    make: Make | None = state_of(ready).get("_make")
    model: Any = None if make is None else make()
    known: KnownCalls | None = state_of(ready).get("_known")
    if model is not None and known is not None and (described := known.described()) is not None:
        model.ran_before = described
    with IMPORTS:  # one thread at a time, and between two forks
        if model is not None and type(ready) is ReadyModel:
            if getattr(model.programs, "layer", None) is model:  # those of layers refer to the model
                model.programs.layer = ready
            # By one call, so that no interrupt comes between the two.
            new = model.__dict__, cast("Any", type(model))
            any(map(object.__setattr__, (ready, ready), ("__dict__", "__class__"), new))
    return ready
