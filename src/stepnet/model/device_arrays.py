"""Arrays on a GPU in calls of models: they are taken where they lie, and results stay there.

    rnn(x, engine="cuda")      x of CuPy, JAX or PyTorch --> net --> outputs, final as `DeviceArray`s
    a call that comes again    found by one key (`forms.py`), and run as it was prepared

Results are arrays that other libraries take by DLPack or the CUDA array interface, without a copy.
"""

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from stepnet.compiler.targets import AddressEngine, Call, checked_engine, engine_at
from stepnet.compiler.values.arguments import is_tensor, refuse_tensor
from stepnet.compiler.values.structure import arranged, leaves, rebuild, transform
from stepnet.errors import InputError
from stepnet.model.control import UncheckedCall
from stepnet.model.forms import FormedCall, formed_on_device
from stepnet.model.jax_arrays import is_on_device
from stepnet.model.nets import call_on
from stepnet.model.programs import Calls, DeviceExecutable, Programs, memory_of, outputs_of
from stepnet.model.reading import Reading
from stepnet.ragged import Ragged

TYPES = {1: "cpu", 2: "cuda"}
"""The types of devices by DLPack's numbers."""
NOT_THERE = (
    "{} is on the host, and the sequences are on a GPU: bring all to one device; only parameters of a model "
    "are brought there by stepnet"
)


def engine_for(values: Sequence[Any], asked: Any) -> AddressEngine:
    """Returns the engine that takes arrays on a device where they lie. Raises `InputError` if the engines
    asked for, as `engine=`, do not.
    """
    first = next(value for value in values if is_on_device(value))
    with refusals_of(first, "an input"):
        type_, number = first.__dlpack_device__() if hasattr(first, "__dlpack_device__") else (2, 0)
    engine = engine_at(checked_engine(asked), TYPES.get(int(type_), ""), int(number))
    if engine is None:
        raise InputError(
            f"an input, of type {type(first).__name__}, is on a GPU, and engine={asked!r} does not read it "
            'there: give engine="cuda", or bring the input to the host'
        )
    return engine


def called_on_device(
    read: Callable[[UncheckedCall], "tuple[Reading[Any], Any]"],
    call: UncheckedCall,
    programs: Programs[Any],
    gives_final: bool,
) -> Any:
    """Runs a call of a model on arrays on a device; returns its results as arrays there. Calls that come
    again are found prepared.

    read: checks a call of the model, whose numbers are not read; gives its program and positions.
    programs: the programs of the model, with its prepared calls.
    gives_final: whether the model returns final memories besides the outputs.

    Raises `InputError` for Raggeds, masks, `begun`, arrays on several devices, and engines that do not take
    arrays on the device.
    """
    control = call.control
    if control.get("mask") is not None or control.get("begun") is not None:
        raise InputError("mask= and begun= are not for arrays on a GPU: give arrays of the host")
    engine = engine_for(leaves(call.sequences), call.engine)
    names = "an input", "an initial memory", "a static"
    sequences, initial, statics = (
        None
        if value is None
        else transform(lambda leaf, name=name: array_on_device(engine, leaf, name), value)
        for name, value in zip(names, (call.sequences, call.initial, call.statics), strict=True)
    )
    call = call._replace(sequences=sequences, initial=initial, statics=statics, engine="auto")
    formed = None
    if statics is None and control.get("masked", "repeat") == "repeat":
        time_major = control.get("time_major", False)
        formed = formed_on_device(sequences, call.lengths, call.last_only, engine.name, time_major)
    done = None if formed is None else programs.run_prepared(formed, sequences, initial)[1]
    results = done or checked_on_device(read, call, programs.calls, formed, engine.name)
    return results if gives_final else results[0]


def checked_on_device(
    read: Callable[[UncheckedCall], "tuple[Reading[Any], Any]"],
    call: UncheckedCall,
    calls: Calls[Any],
    formed: FormedCall | None,
    engine: str,
) -> tuple[Any, Any]:
    """Checks a call on arrays of a device, and runs it; returns outputs and final memories.

    formed: the call by which later ones find it prepared; None for one that is never prepared. engine: the
    name of the engine.
    """
    blanks = [transform(blank_of, value) for value in (call.sequences, call.initial, call.statics)]
    reading, _ = read(call._replace(sequences=blanks[0], initial=blanks[1], statics=blanks[2]))
    program, batch = reading.program.as_given, reading.batch
    memories = [None] * program.memories
    if call.initial is not None:
        own = leaves(arranged(call.initial, program.memory))
        memories[: len(own)] = own
    total = batch.positions.total
    flat = [each.reshape((total, *each.shape[2:])) for each in leaves(call.sequences)]
    inputs, bound = [*flat, *memories, *leaves(call.statics)], program.bound(engine)
    own_call = call_on(program, inputs, Call(batch.positions), None)
    shapes = tuple(
        (*batch.like, *features) if levels else (batch.positions.rows, *features)
        for features, levels in outputs_of(program)
    )
    memory = memory_of(program, batch.positions.rows)
    is_due = formed is not None and len(memory) == program.memories and calls.is_due(formed[0])
    if formed is not None and is_due and (prepared := bound.prepare(own_call)) is not None:
        calls.keep(formed[0], DeviceExecutable[Any](program, memory, shapes, prepared), prepared.bytes)
    outputs, final, _ = program.split(bound(own_call))
    made = [array.reshape(shape) for array, shape in zip(outputs, shapes, strict=True)]
    return rebuild(program.output, made), program.final(final)


def array_on_device(engine: AddressEngine, value: Any, name: str) -> Any:
    """Returns an array on the engine's device where it lies. Raises `InputError` for an array elsewhere, and
    for a Ragged. name: of the value, for the message.
    """
    if isinstance(value, Ragged):
        raise InputError("a Ragged cannot be on a GPU: give an array [batch, time, ...] and lengths=")
    if is_tensor(value) and value.requires_grad:
        refuse_tensor(value, name)
    getattr(value, "block_until_ready", lambda: None)()  # JAX computes later
    with refusals_of(value, name):
        array = engine.array_of(value)
    if array is None:
        raise InputError(NOT_THERE.format(f"{name}, of type {type(value).__name__},"))
    return array


@contextmanager
def refusals_of(value: Any, name: str) -> Generator[None]:
    """Context in which `BufferError`, by which a library refuses to lend the memory of an array, is raised as
    `InputError`: JAX does so for an array in parts on several devices. name: of the value, for the message.
    """
    try:
        yield
    except BufferError as error:
        raise InputError(
            f"{name}, of type {type(value).__name__}, cannot be read where it lies ({error}): give a copy "
            "on one device, or one of the host"
        ) from error


def blank_of(array: Any) -> Any:
    """Makes an array without numbers of the shape and dtype of one on a device."""
    return np.empty(array.shape, array.dtype)
