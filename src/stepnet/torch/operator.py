"""Recurrences as an operator of PyTorch, which graphs of torch.compile and torch.export contain.

    outputs, h  =  torch.ops.stepnet.recurrence("GRU 3 4 ...", "time", [], [0, 1, 2], [x, h0, W, ...])

A graph holds tensors, numbers and text, but no nets. So the operator is given a key that names the module
(`keys.py`). While torch.onnx.export makes the graph, it gets operators of ONNX instead (`decompositions.py`).

With gradients, the last result for a `Recurrence` is the number of the compiled step that ran. The backward
operator runs the same one, also if the module has changed in between. Layers of torch.nn cannot change.

Without a graph, the operator is not used: it takes longer to call.
"""

from collections.abc import Callable, Sequence
from functools import wraps
from math import prod
from typing import Any
from weakref import WeakValueDictionary

from stepnet.compiler.net.types import ROWS, STEPS, Type
from stepnet.compiler.targets import Order, engine_at
from stepnet.errors import InputError
from stepnet.model.gradients.differentiable import FixedPasses
from stepnet.model.gradients.pieces import Checkpoint
from stepnet.model.program import Asked
from stepnet.ragged.positions import Positions
from stepnet.torch.arrays import HALVES, carried, check_saved
from stepnet.torch.bound import DifferentiableLayers
from stepnet.torch.decompositions import in_operators
from stepnet.torch.keys import engines_on, may_change, runnable_of, with_engines
from stepnet.torch.meta import empty_results
from stepnet.torch.places import ON_HOST, place_on
from stepnet.torch.pytorch import pytorch
from stepnet.torch.recording import (
    check_forward_mode,
    constant_in_graphs,
    exports_to_onnx,
    makes_graph,
    wanted_of,
)
from stepnet.torch.running import run_backward
from stepnet.torch.sequences import DEVICES, HOST, SequencePlaces, leading_axes

torch: Any = pytorch("torch")
library: Any = pytorch("torch.library")
KINDS = dict[tuple[str, tuple[int, ...], Order], tuple[Type, ...]]()
"""Types of a recurrence's results when PyTorch's compiler asked for them, by (key, inputs with gradients,
engines)."""

FORWARDS = WeakValueDictionary[int, DifferentiableLayers]()
"""The compiled modules of which an operator ran a forward pass with gradients, by their number."""

NO_TRANSFORM = (
    "inside torch.compile, recurrences cannot run under the transforms of torch.func: differentiate "
    "with backward or torch.autograd.grad, or leave the transform outside the compiled function"
)
NO_VMAP = (
    "a recurrence in a graph of torch.compile or torch.export cannot run under torch.vmap: give all "
    "sequences as one batch, or run the module itself"
)
NO_CHECKPOINT = (
    "inside torch.compile and torch.export, recurrences cannot use checkpoint=, as the memory that "
    "it takes depends on the lengths: run the module outside the graph, or set its checkpoint to None"
)
NO_SAVED = (
    "inside torch.compile and torch.export, recurrences cannot use saved=: run the module outside the graph, "
    "or set its saved to None"
)
TAGS = tuple(filter(None, [getattr(torch.Tag, "cudagraph_unsafe", None)]))
"""PyTorch's marks of the operators: its compiler leaves them out of CUDA graphs, as a call may copy positions
to the GPU. Older versions of PyTorch have no such mark.
"""
OPERANDS = "str key, str form, Tensor[] place, int[]? wanted, Tensor[] inputs"


def forward_of(number: int) -> DifferentiableLayers:
    """Returns the compiled step with which a forward pass ran, to run its backward pass.

    number: the number of the step, which the forward pass returned.

    Raises `InputError` if the module no longer has this step: it keeps the latest few.
    """
    if number not in FORWARDS:
        raise InputError(
            "a stepnet.torch.Recurrence has changed many times between the forward pass of a compiled graph "
            "and its gradients: call backward before its attributes change"
        )
    return FORWARDS[number]


def in_graph(
    key: str,
    place: SequencePlaces,
    data: Any,
    memories: list[Any],
    statics: list[Any],
    parameters: list[Any],
    outputs: int,
    checkpoint: Checkpoint = None,
    engine: Asked = "auto",
    saved: str | None = None,
) -> list[Any]:
    """Adds PyTorch's operator for a recurrence to the graph that torch.compile or torch.export makes.

    Returns the recurrence's results, as tensors of that graph.

    key: names the module, for `runnable_of`. place: the positions of the sequences in `data`.
    memories, statics, parameters: the other inputs of its net. Zeros must be given for initial memories.
    outputs: the number of results that have one entry per step; they come first. The others are the final
        memories, one for each of `memories`.
    checkpoint: the module's number of steps between memories saved for gradients. Raises `InputError` if
        there is one: the values that it saves would have no fixed shapes.
    engine: an engine, or several in order of preference, which the graph keeps.
    saved: the module's dtype of values for gradients alone. Raises `InputError` if there is one.
    """
    if saved is not None:
        raise InputError(NO_SAVED)
    is_half = any(tensor.dtype in HALVES for tensor in (data, *parameters))
    inputs = [data, *(carried(memories) if is_half else memories), *statics, *parameters]
    results = operator_results(key, place, inputs, checkpoint, engine)
    lead = data.shape[: place.lead]
    whole = [tensor.reshape(*lead, *tensor.shape[1:]) for tensor in results[:outputs]]
    last = results[outputs : outputs + len(memories)]
    return [*whole, *(tensor.to(own.dtype) for tensor, own in zip(last, memories, strict=True))]


def operator_results(
    key: str, place: SequencePlaces, inputs: list[Any], checkpoint: Checkpoint, engine: Asked
) -> list[Any]:
    """Adds PyTorch's operator for a net to the graph that is made; returns the net's results, followed by
    values that the graph saves for gradients.

    inputs: the inputs of the net, the sequences first. The other arguments are those of `in_graph`.
    """
    # Under a transform the compiler stops at the next line, which its message quotes; torch.export goes on.
    if torch._C._functorch.maybe_current_level() is not None:  # no transform of torch.func in a graph
        raise InputError(NO_TRANSFORM)
    check_forward_mode()
    if checkpoint is not None:
        raise InputError(NO_CHECKPOINT)
    if exports_to_onnx():
        return in_operators(key, place.form, place.tensors, [], inputs)
    wanted, named = wanted_in_graph(inputs), with_engines(key, engine)
    return torch.ops.stepnet.recurrence(named, *place.for_operator(inputs[0]), wanted, inputs)


def reason_in_graph(module: Any, key: str, device: Any) -> str:
    """Returns why PyTorch's own operations run a module in a graph for tensors on a device; "" if stepnet's
    operator does.

    key: the name of the module in graphs.
    """
    if device.type == HOST or not makes_graph():
        return ""
    if module.checkpoint is not None:
        return NO_CHECKPOINT
    if module.saved is not None:
        return NO_SAVED
    return refusal(key, device.type, device.index or 0, torch.is_grad_enabled())


@constant_in_graphs
def refusal(key: str, kind: str, number: int, differentiated: bool) -> str:
    """Returns why the engine of a device refuses the module that a key names; "" if it does not.

    kind, number: the type of the device and its number. differentiated: whether gradients are wanted too.
    """
    net, engine = runnable_of(key).net, engine_at("auto", kind, number)
    if engine is None:
        return f"no engine takes tensors on {kind}"
    floats = (place for place, type_ in enumerate(net.inputs) if type_.is_float)
    return net.refusal(engine.name, tuple(floats) if differentiated else ()) or ""


def wanted_in_graph(inputs: list[Any]) -> list[int]:
    """Returns the positions of the inputs for which a graph of PyTorch must compute gradients.

    An exported graph may be asked for the gradients of all floating-point inputs, so it computes all of them.
    """
    floats = [place for place, tensor in enumerate(inputs) if tensor.is_floating_point()]
    if torch.jit.is_tracing():  # torch.export traces again without gradients, and compares both graphs
        return floats
    if not torch.is_grad_enabled():
        return []
    return floats if torch.compiler.is_exporting() else list(wanted_of(inputs))


# ---- the operator ------------------------------------------------------------------------------------------


def recurrence(
    key: str, form: str, place: Sequence[Any], wanted: Sequence[int] | None, inputs: Sequence[Any]
) -> Any:
    """Implements the operator that runs a recurrence in graphs of PyTorch.

    Returns the results, followed by the values saved for the gradients of the inputs at the positions
    `wanted`, and then, if there are any and the module may change, the number of the compiled step that
    computed them.

    key: names the module. wanted: None, as AOTInductor passes empty lists, is no input.
    form, place: the form of the data, such as "time", and tensors with the positions in it, as
        `SequencePlaces.for_operator` gives them.
    inputs: the data, memories, statics (values that each sequence has once) and parameters.
    """
    runnable, where = runnable_of(key), SequencePlaces.of_operator(form, place)
    engine = engines_on(inputs[0].device, key)
    passes = passes_of(runnable, wanted, engine) if wanted else None
    if passes is not None and place_on(inputs[0].device, engine) is not ON_HOST:
        passes = passes.apart  # no result of an operator may lie in the storage of another one
    types = tuple(runnable.net.results if passes is None else passes.types)
    if KINDS.get((key, tuple(wanted or ()), engine), types) != types:
        raise InputError(
            "an attribute that the step of a Recurrence reads has changed since its graph was "
            "compiled, and with it the values that are saved for gradients: compile the module "
            "again, after torch._dynamo.reset()"
        )
    results = runnable.in_order(where, list(inputs), passes, engine)
    if not wanted or not may_change(key):
        return list(results)
    FORWARDS[runnable.number] = runnable
    return [*results, torch.tensor(runnable.number)]


def recurrence_backward(
    key: str, form: str, place: Sequence[Any], wanted: Sequence[int], inputs: Sequence[Any]
) -> Any:
    """Implements the operator that computes the gradients of a recurrence in graphs of PyTorch, for the
    inputs at the positions `wanted`.

    key: names the module.
    form, place: the form of the data, and tensors with the positions of its sequences, as for the operator
        `recurrence`.
    inputs: the inputs of `recurrence`, the cotangents of its floating-point results, its saved values, and
        the number of the compiled step that computed them, if the module may change.

    Raises `InputError` if a hook on saved tensors changed the shape or the dtype of one of these.
    """
    *inputs, number = inputs if may_change(key) else (*inputs, None)
    if number is not None:
        check_saved([number], [((), torch.int64)])
    runnable = runnable_of(key) if number is None else forward_of(int(number))
    where = SequencePlaces.of_operator(form, place)
    net, passes = runnable.net, passes_of(runnable, wanted, engines_on(inputs[0].device, key))
    count, floats = len(net.inputs), len(net.floats)
    positions = positions_of_saved(runnable, passes, where, inputs)
    tensors = runnable.flat(where, inputs[:count])
    return list(run_backward(passes, positions, tensors, inputs[count:][:floats], inputs[count + floats :]))


def positions_of_saved(
    runnable: DifferentiableLayers, passes: FixedPasses, where: SequencePlaces, inputs: list[Any]
) -> Positions:
    """Returns the positions of the sequences of a backward pass.

    inputs: the inputs of the net, the cotangents of its floating-point results, and the saved values.

    Raises `InputError` if a hook on saved tensors changed the shape or the dtype of one: a graph passes on
    what a hook gives.
    """
    net, count = runnable.net, runnable.sequences
    lead = inputs[0].shape[: where.lead]
    whole = [(each.shape, torch.int64 if each.is_floating_point() else each.dtype) for each in where.tensors]
    check_saved(where.tensors, whole)
    check_saved(inputs[:count], [form_of_type(type_, lead) for type_ in net.inputs[:count]])
    positions = where.positions(inputs[0])
    leads = {STEPS: (lead.numel(),), ROWS: (positions.rows,)}
    types = [
        *net.inputs[count:],
        *(net.results[at] for at in net.floats),
        *(passes.types[at] for at in passes.saved),
    ]
    check_saved(inputs[count:], [form_of_type(type_, leads.get(type_.extent, ())) for type_ in types])
    return positions


def form_of_type(type_: Type, lead: Sequence[int]) -> Any:
    """Returns the form of a tensor of a type, as `form_of` does. lead: the axes ahead of its features."""
    return (*lead, *type_.shape), getattr(torch, type_.dtype)


def passes_of(runnable: DifferentiableLayers, wanted: Sequence[int], engine: Order) -> FixedPasses:
    """Returns the forward and the backward pass of a compiled module (`runnable`) for gradients of the inputs
    at the positions `wanted`. engine: the engines in order of preference, by `engines_on`.

    The operators of both passes and the functions that state the shapes of their results all call this
    function, so that they agree on the saved values. A call outside of a graph may run in blocks of steps
    (several computed as one) instead, which save values of no fixed number or shape.
    """
    return runnable.net.halves(tuple(wanted), engine, is_stored=True)


def shapes_of(
    runnable: DifferentiableLayers, types: Sequence[Type], form: str, inputs: Sequence[Any]
) -> list[Any]:
    """Returns empty tensors for values of these types, whose shapes PyTorch's tracer asks for.

    runnable: the compiled module. form: the form of the sequences, a field of `SequencePlaces`.
    inputs: the inputs of its net, the data first. The number of sequences is read from any input with an
        entry for each, such as a memory.
    """
    known = zip(runnable.net.inputs, inputs, strict=False)
    rows = [tensor.shape[0] for type_, tensor in known if type_.extent == ROWS]
    total = prod(inputs[0].shape[: leading_axes(form)])
    lead = {STEPS: (total,), ROWS: tuple(rows[:1])}
    return empty_results(types, lead, inputs[0])


def recurrence_shapes(
    key: str, form: str, place: Any, wanted: Sequence[int] | None, inputs: Sequence[Any]
) -> Any:
    """Returns empty tensors like the results of the operator `recurrence`, for PyTorch's tracer.

    It takes that operator's arguments: the key of a module, the form of its sequences ("time" and the like),
    tensors with the positions in it, the positions of the inputs that get gradients, and the inputs. It
    records the types of the results, so that the operator notices if the module has changed since.
    """
    runnable, engine = runnable_of(key), engines_on(inputs[0].device, key)
    types = passes_of(runnable, wanted, engine).types if wanted else runnable.net.results
    KINDS[key, tuple(wanted or ()), engine] = tuple(types)
    results = shapes_of(runnable, types, form, inputs)
    if not wanted or not may_change(key):
        return results
    return [*results, torch.empty((), dtype=torch.int64, device=HOST)]


def backward_shapes(key: str, form: str, place: Any, wanted: Sequence[int], inputs: Sequence[Any]) -> Any:
    """Returns empty tensors like the results of the operator `recurrence_backward`, for PyTorch's tracer. It
    takes that operator's arguments: the key of a module, the form of the data and the positions in it, the
    positions of the inputs that get gradients, and the inputs.
    """
    runnable = runnable_of(key)
    passes = passes_of(runnable, wanted, engines_on(inputs[0].device, key))
    return shapes_of(runnable, passes.gradient_types, form, inputs)


def save(ctx: Any, inputs: tuple[Any, ...], output: Sequence[Any]) -> None:
    """Stores in PyTorch's context `ctx`, for `gradients`, the inputs and the results (`output`) of the
    operator `recurrence`.

    Raises `InputError` if gradients are required of inputs for which the graph does not compute them.
    """
    ctx.key, ctx.form, place, wanted, tensors = inputs
    ctx.wanted = wanted or list[int]()
    if not set(wanted_of(tensors)) <= set(ctx.wanted):
        raise InputError(
            "gradients are requested from a graph that was made without them: make the graph where "
            "gradients are enabled, from a module whose parameters require them"
        )
    engine = engines_on(tensors[0].device, ctx.key)
    saved = passes_of(runnable_of(ctx.key), ctx.wanted, engine).saved if ctx.wanted else ()
    ctx.counts = len(place), len(tensors)
    number = output[-1:] if may_change(ctx.key) else ()
    kept = [output[at] for at in saved]
    ctx.save_for_backward(*place, *tensors, *output, *kept, *number)
    ctx.results = len(output)


def gradients(ctx: Any, cotangents: Sequence[Any]) -> tuple[Any, ...]:
    """Computes the gradients of the arguments of the operator `recurrence`, for PyTorch's autograd.

    cotangents: one for each result, or None. Arguments that get no gradient have None in the result.
    """
    places, count = ctx.counts
    every = ctx.saved_tensors
    place, tensors, outputs = every[:places], every[places : places + count], every[places + count :]
    results, saved = outputs[: ctx.results], outputs[ctx.results :]
    floats = runnable_of(ctx.key).net.floats
    pairs = [(cotangents[place], results[place]) for place in floats]
    known = [torch.zeros_like(like) if tensor is None else tensor for tensor, like in pairs]
    inputs = [*tensors, *known, *saved]
    gradients = torch.ops.stepnet.recurrence_backward(ctx.key, ctx.form, list(place), ctx.wanted, inputs)
    by_place = dict(zip(ctx.wanted, gradients, strict=True))
    for place in range(runnable_of(ctx.key).sequences):  # whose gradients have all steps along one axis
        if place in by_place:
            by_place[place] = by_place[place].reshape(tensors[place].shape)
    return None, None, [None] * places, None, [by_place.get(number) for number in range(count)]


def no_second(ctx: Any, *cotangents: Any) -> Any:
    """Raises `InputError` when a second derivative is requested: a graph has first derivatives only."""
    raise InputError(
        "a compiled or exported recurrence has only first derivatives: run the module itself for higher ones"
    )


def no_vmap(*arguments: Any) -> Any:
    """Raises `InputError` when torch.vmap calls an operator, which does not support it."""
    raise InputError(NO_VMAP)


def reverse_only(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps the implementation of an operator (`function`), so that it raises `InputError` in forward mode.
    The operator has no rule for that, and PyTorch would take the tangents of its results as zeros.
    """

    @wraps(function)
    def checked(*arguments: Any) -> Any:
        """Runs the implementation on its arguments, outside of forward mode."""
        check_forward_mode()
        return function(*arguments)

    return checked


def products(data: Any, count: int) -> None:
    """Implements the operator `products`, which does nothing: `count_products` calls it for PyTorch's
    counters, which count the operations of operators. The arguments are not read.
    """


def counted(key: str, form: str, place: Any, wanted: Any, inputs: Any, out_val: Any = None) -> int:
    """Counts the operations in matrix products of the operator `recurrence`, by its arguments."""
    return runnable_of(key).net.products(SequencePlaces.of_operator(form, place).positions(inputs[0]))


def backward_counted(key: str, form: str, place: Any, wanted: Any, inputs: Any, out_val: Any = None) -> int:
    """Counts the operations in matrix products of the operator `recurrence_backward`, by its arguments."""
    positions = SequencePlaces.of_operator(form, place).positions(inputs[0])
    return runnable_of(key).net.products(positions, tuple(wanted))


def given_count(data: Any, count: int, out_val: Any = None) -> int:
    """Returns the count of the operator `products`, whose arguments it takes. data, out_val: not read."""
    return count


def define() -> None:
    """Registers the operators `recurrence` and `recurrence_backward` with PyTorch: how to run them, the
    shapes of their results, their gradients and their operations. Under vmap and in forward mode they raise
    an error. The operator `products` is for PyTorch's counters alone.
    """
    for function, shapes in ((recurrence, recurrence_shapes), (recurrence_backward, backward_shapes)):
        name = f"stepnet::{function.__name__}"
        library.custom_op(
            name,
            reverse_only(function),
            mutates_args=(),
            schema=f"({OPERANDS}) -> Tensor[]",
            device_types=DEVICES,
            tags=TAGS,
        ).register_fake(reverse_only(shapes))
        library.register_vmap(name, no_vmap)
    library.register_autograd("stepnet::recurrence", gradients, setup_context=save)
    library.register_autograd("stepnet::recurrence_backward", no_second)
    library.custom_op("stepnet::products", products, mutates_args=(), schema="(Tensor data, int count) -> ()")
    ours, register = torch.ops.stepnet, pytorch("torch.utils.flop_counter").register_flop_formula
    rows = (
        (ours.recurrence, counted),
        (ours.recurrence_backward, backward_counted),
        (ours.products, given_count),
    )
    for operator, formula in rows:
        register(operator, get_raw=True)(formula)


define()
