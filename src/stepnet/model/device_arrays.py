"""Arrays on a GPU in calls of models: they are taken where they lie, and results stay there.

    rnn(x, engine="cuda")      x of CuPy, JAX or PyTorch --> net --> outputs, final as `DeviceArray`s

Results are arrays that other libraries take by DLPack or the CUDA array interface, without a copy.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from stepnet.compiler.targets import AddressEngine, Call, checked_engine, engine_at
from stepnet.compiler.values.arguments import is_tensor, refuse_tensor
from stepnet.compiler.values.structure import arranged, leaves, rebuild, transform
from stepnet.errors import InputError
from stepnet.model.control import UncheckedCall
from stepnet.model.jax_arrays import is_on_device
from stepnet.model.nets import call_on
from stepnet.model.reading import Reading
from stepnet.ragged import Ragged

TYPES = {1: "cpu", 2: "cuda"}
"""The types of devices by DLPack's numbers."""
NOT_THERE = (
    "{} is on the host, and the sequences are on a GPU: bring all to one device; only parameters of a model "
    "are brought there by stepnet"
)


def engine_for(values: Sequence[Any], asked: Any) -> AddressEngine:
    """Returns the engine that takes arrays on a device where they lie. Raises `InputError` if those asked
    for, as `engine=`, do not.
    """
    first = next(value for value in values if is_on_device(value))
    type_, number = first.__dlpack_device__() if hasattr(first, "__dlpack_device__") else (2, 0)
    engine = engine_at(checked_engine(asked), TYPES.get(int(type_), ""), int(number))
    if engine is None:
        raise InputError(
            f"an input, of type {type(first).__name__}, is on a GPU, and engine={asked!r} does not read it "
            'there: give engine="cuda", or bring the input to the host'
        )
    return engine


def called_on_device(
    read: Callable[[UncheckedCall], "tuple[Reading[Any], Any]"], call: UncheckedCall, gives_final: bool
) -> Any:
    """Runs a call of a model on arrays on a device; returns its results as arrays there.

    read: checks a call of the model, whose numbers are not read; gives its program and positions.
    gives_final: whether the model returns final memories besides the outputs.

    Raises `InputError` for Raggeds, masks, `begun`, arrays on several devices, and engines that do not take
    arrays on the device.
    """
    if call.control.get("mask") is not None or call.control.get("begun") is not None:
        raise InputError("mask= and begun= are not for arrays on a GPU: give arrays of the host")
    engine = engine_for(leaves(call.sequences), call.engine)
    names = "an input", "an initial memory", "a static"
    sequences, initial, statics = (
        transform(lambda leaf, name=name: taken(engine, leaf, name), value)
        for name, value in zip(names, (call.sequences, call.initial, call.statics), strict=True)
    )
    blanks = [transform(blank_of, value) for value in (sequences, initial, statics)]
    blank = call._replace(sequences=blanks[0], initial=blanks[1], statics=blanks[2], engine="auto")
    reading, _ = read(blank)
    program, batch = reading.program, reading.batch
    memories = [None] * program.memories
    if initial is not None:
        own = leaves(arranged(initial, program.memory))
        memories[: len(own)] = own
    flat = [each.reshaped((batch.positions.total, *each.shape[2:])) for each in leaves(sequences)]
    inputs = [*flat, *memories, *leaves(statics)]
    run = program.bound(engine.name)
    outputs, final, _ = program.split(run(call_on(program, inputs, Call(batch.positions), None)))
    pairs = zip(outputs, program.levels, strict=True)
    results = rebuild(
        program.output,
        [array.reshaped((*batch.like, *array.shape[1:])) if levels else array for array, levels in pairs],
    )
    memories = [array for array, _ in zip(final, leaves(program.memory), strict=False)]
    return (results, rebuild(program.memory, memories)) if gives_final else results


def taken(engine: AddressEngine, value: Any, name: str) -> Any:
    """Returns an array on the engine's device where it lies. Raises `InputError` for one that is elsewhere,
    or a Ragged. name: what the value is, for the message.
    """
    if isinstance(value, Ragged):
        raise InputError("a Ragged cannot be on a GPU: give an array [batch, time, ...] and lengths=")
    if is_tensor(value) and value.requires_grad:
        refuse_tensor(value, name)
    getattr(value, "block_until_ready", lambda: None)()  # JAX computes later
    array = engine.array_of(value)
    if array is None:
        raise InputError(NOT_THERE.format(f"{name}, of type {type(value).__name__},"))
    return array


def blank_of(array: Any) -> Any:
    """Makes an array without numbers of the shape and dtype of one on a device."""
    return np.empty(array.shape, array.dtype)
