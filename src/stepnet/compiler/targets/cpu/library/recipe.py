"""The sequence of operations in a call of a library, as values; `driver_code` writes them as code.

    schedule ->   part 0  kernel   values 0 1   -> 5      machine code of a plan, and its constants
                  part 1  spread   value 3      -> 8      a value of each sequence repeated at its steps
                  part 2  kernel   values 5 8   -> 9

A library has no Python or NumPy. So a model is refused if it computes anything but copies and sums between
its parts.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import field

import numpy as np
from llvmlite import ir

from stepnet.compiler.net.interpreter import evaluated
from stepnet.compiler.net.ir import Net
from stepnet.compiler.net.types import CONST, ROWS, STEPS, Extent, extent_text, is_derived, is_pairs
from stepnet.compiler.net.windows import is_own_axis
from stepnet.compiler.plan.passes.when import known_once
from stepnet.compiler.plan.plan import Plan
from stepnet.compiler.plan.schedule import Part
from stepnet.compiler.plan.waves import Across, pairs_extent, read_in_place
from stepnet.compiler.targets.cpu.compile.compiled import Layout
from stepnet.compiler.targets.cpu.library.objects import OWN
from stepnet.compiler.targets.cpu.library.platforms import Platform
from stepnet.compiler.targets.cpu.machine.lazy import lazy_import
from stepnet.compiler.targets.cpu.machine.processor import Processor, host_processor
from stepnet.compiler.targets.cpu.machine.records import LINE
from stepnet.compiler.targets.cpu.products.constants import (
    Constants,
    PackedParameters,
    Values,
    constant_values,
    copy_bytes,
)
from stepnet.compiler.targets.cpu.running.across import refusal_of
from stepnet.compiler.targets.library import CallSpecification
from stepnet.compiler.targets.packed import parameters_of
from stepnet.compiler.values.records import dataclass
from stepnet.errors import RefusedError

Array = np.ndarray
INSTEAD = "Build the layers without it as a model of their own, or run the model in Python"
"""Advice for a model that is refused."""


@dataclass(frozen=True)
class PlanKernel:
    """The compiled code of a plan (which operation runs when). Values are node numbers of the net. functions:
    the names of its functions in the library, by those of the plan. inputs, initial, statics: the values that
    it reads, -1 for zeros. outputs, rows: its results per step and per sequence, -1 for one that is not read.
    extent: the extent of its values. is_plain: it has no recurrence, and its values are the steps of one
    sequence.
    last_only: the outputs are those of the last step. constants: the offset of its constants among the
    weights.
    """

    plan: Plan
    layout: Layout
    functions: dict[str, str]
    inputs: tuple[int, ...]
    initial: tuple[int, ...]
    statics: tuple[int, ...]
    outputs: tuple[int, ...]
    rows: tuple[int, ...]
    extent: Extent
    is_plain: bool
    last_only: bool
    constants: int


@dataclass(frozen=True)
class AcrossStep:
    """An operation across extents, such as a mean over steps. source, result: node numbers."""

    source: int
    result: int
    across: Across


Step = PlanKernel | AcrossStep


@dataclass
class Recipe:
    """The operations of a call in order, and the weights. constants: the offsets in the weights of constants
    that operations read as values, by node number.
    """

    steps: list[Step] = field(default_factory=list[Step])
    weights: bytearray = field(default_factory=bytearray)
    constants: dict[int, int] = field(default_factory=dict[int, int])

    @property
    def layout(self) -> tuple[int, list[int], list[tuple[int, int]]]:
        """The numbers about the weights that generated code contains, which identify it: the bytes, the
        offset of each compiled part's constants, and (node number, offset) of other constants.
        """
        kernels = [step.constants for step in self.steps if isinstance(step, PlanKernel)]
        return len(self.weights), kernels, sorted(self.constants.items())

    def add(self, data: bytes) -> int:
        """Appends bytes to the library's weights, aligned to a cache line; returns their offset."""
        self.weights += bytes(-len(self.weights) % LINE)
        index = len(self.weights)
        self.weights += data
        return index


def recipe_of(model: CallSpecification, platform: Platform, module: ir.Module, name: str) -> Recipe:
    """Returns the operations that a call of a model runs, in order, with the weights that they read, and adds
    the machine code of the model's plans (each a part's operations in their order) to an LLVM module. Equal
    plans are compiled once.

    platform: the platform to compile for. module: the LLVM module. name: the prefix of the library's
    functions. Raises `RefusedError` for a model with a part that cannot be compiled, or a result that is a
    constant.
    """
    recipe, net, parts = Recipe(), model.net, model.schedule.parts
    in_place = read_in_place(parts, parts)
    for value in (*net.inputs, *net.results):
        check_extent(net.type_of(value).extent, net.nodes[value].source)
    parameters = dict(zip(parameters_of(net), model.params, strict=True))
    known = sorted(n for n in known_once(net) if net.nodes[n].operation != "input")
    constants = evaluated(net, parameters, known)
    written = dict[str, tuple[Layout, dict[str, str]]]()
    for number, part in enumerate(parts):
        what = f"part {number} ({part.kind})"
        check_part(part, what)
        if part.plan is None:
            recipe.steps.append(across_step(net, part, in_place, what))
        else:
            kernel_of_plan = written.get(part.plan.key)
            if kernel_of_plan is None:
                kernel_of_plan = written[part.plan.key] = compile_into(
                    part.plan, platform.code, module, f"{name}{OWN}{len(written)}_", what
                )
            recipe.steps.append(kernel(recipe, model, part, kernel_of_plan, constants, platform.code))
        reads = part.reads if part.plan is not None else part.reads[:1]
        for value in reads:
            if value in constants and value not in recipe.constants:
                recipe.constants[value] = recipe.add(np.ascontiguousarray(constants[value]).tobytes())
    lazy_import("emit.driver_code").write_called(module, platform.code)
    for value in net.results:
        if value in constants:
            raise RefusedError(
                "a result is a constant, which no call computes: take it from the model in Python"
            )
    return recipe


def part_refusal(what: str, reason: str) -> RefusedError:
    """Makes the error for a part that cannot be compiled. what: such as "part 2 (loop)"."""
    return RefusedError(f"the model cannot be built: {what}: {reason}. {INSTEAD}")


def check_extent(extent: Extent, source: str) -> None:
    """Raises `RefusedError` unless values at an extent are one per call, sequence or step, also of steps of
    which there are other numbers, as after a stride. source: the line or layer that makes the value.
    """
    if extent and is_own_axis(extent[-1]):
        raise RefusedError(
            f"the inputs of a library have the same steps; an input has steps of its own, at "
            f"{extent_text(extent)}. {INSTEAD}"
        )
    if is_pairs(extent):
        raise RefusedError(
            f"a library has no attention between the steps of a sequence"
            f"{f', as at {source}' if source else ''}. {INSTEAD}"
        )
    if extent not in (CONST, ROWS, STEPS) and not is_derived(extent):
        raise RefusedError(
            f"a library takes flat sequences; the model has values at {extent_text(extent)}: nested "
            f"sequences, and statics that are sequences, are laid out by NumPy. {INSTEAD}"
        )


def check_part(part: Part, what: str) -> None:
    """Raises `RefusedError` for a part of a schedule (a net cut into parts) that needs Python or NumPy: a
    value over the whole batch, a loop of parts, parameters that are computed in the call, or values of nested
    sequences. what: such as "part 2 (loop)".
    """
    reasons = {
        "total": "a value over all sequences of a batch is computed by NumPy",
        "loop": "a recurrence whose steps are run part by part is a loop in Python",
    }
    reason = reasons.get(part.kind)
    if part.is_bound_per_call:
        reason = "its parameters are values over all sequences, and packed anew in each call"
    if part.plan is not None and part.plan.ends.totals:
        reason = reasons["total"]
    has_steps = part.extent == STEPS or is_derived(part.extent)
    if part.kind != "plain" and part.extent not in (ROWS, CONST) and not has_steps:
        reason = f"it runs over sequences at {extent_text(part.extent)}, which NumPy lays out"
    if part.kind == "recurrence" and not has_steps:
        reason = f"it is a recurrence over values at {extent_text(part.extent)}"
    if reason is not None:
        raise part_refusal(what, reason)


def compile_into(
    plan: Plan, processor: Processor, module: ir.Module, prefix: str, what: str
) -> tuple[Layout, dict[str, str]]:
    """Compiles a plan (which operation runs when) into an LLVM module. Returns the layout of its arguments
    and constants, and the full names of its functions by short ones such as "run".

    prefix: the text before the functions' names. what: the part of the schedule that has the plan, such as
    "part 2 (plain)", for the message of the `RefusedError` for a plan that cannot be compiled.
    """
    refusal: str | None = lazy_import("lower.refusals").plan_refusal(plan)
    if refusal is not None:
        raise part_refusal(what, refusal)
    generate, program = lazy_import("compile.generate"), lazy_import("lower.program").lowered(plan, processor)
    names: Sequence[str] = generate.write_functions(module, program, processor, prefix)
    layout: Layout = generate.layout_of(plan, program, processor)
    for number in layout.needs.reduced:
        node, type_of = plan.net.nodes[number], plan.net.type_of
        across = Across("reduce", node.attributes["how"], type_of(node.inputs[0]), node.type)
        check_across(across, what)
    return layout, {symbol: prefix + symbol for symbol in names}


def kernel(
    recipe: Recipe,
    model: CallSpecification,
    part: Part,
    compiled: tuple[Layout, dict[str, str]],
    constants: Mapping[int, Array],
    processor: Processor,
) -> PlanKernel:
    """Makes the operation that runs the compiled plan of a part in a call, and adds the part's constants to
    the weights of the recipe.

    model: the model that is built. part: a part of its schedule. compiled: the layout (arguments and
    constants) of the machine code, and the names of its functions. constants: the arrays of values that need
    no inputs, by node number. processor: the processor that will run the code. A model with a single plan
    reads the inputs of the net; a part of several reads the values that the schedule names.
    """
    plan, net, (layout, functions) = part.plan, model.net, compiled
    assert plan is not None
    if model.schedule.single_plan is not None:
        numbers, ends = parameters_of(net), plan.ends
        inputs, initial, statics = (
            tuple(net.inputs[index] for index in indices)
            for indices in (ends.sequences, ends.memories, ends.statics)
        )
        results = net.results
    else:
        numbers, results = list(part.parameters), part.results
        last = len(part.reads) - part.statics
        first = last - part.memories
        inputs, initial, statics = part.reads[:first], part.reads[first:last], part.reads[last:]
        if part.kind == "plain":
            inputs, initial, statics = part.reads, (-1,), ()
    outputs, rows = (results_at(results, indices) for indices in (plan.ends.steps, plan.ends.rows))
    if part.kind == "plain":
        rows = tuple(-1 for _ in plan.ends.rows)
    values = constant_values(plan, [constants[number] for number in numbers])
    index = recipe.add(pack_constants(layout.constants, values, processor).tobytes())
    read, written = (inputs, initial, statics), (outputs, rows)
    kind = part.extent, part.kind == "plain", part.last_only
    return PlanKernel(plan, layout, functions, *read, *written, *kind, index)


def results_at(results: Sequence[int], indices: Sequence[int]) -> tuple[int, ...]:
    """Returns the node numbers of some results of a model or part. results: the node numbers of all. indices:
    the indices of the results to return; -1 is returned for an index past the end, which is a result that
    nothing reads.
    """
    return tuple(results[index] if index < len(results) else -1 for index in indices)


def pack_constants(constants: Constants, values: Values, processor: Processor) -> Array:
    """Packs the constants of a plan (the operations of a part in their order) into bytes, as its machine code
    reads them. constants: the offset of each, and the arrays or how they are filled from parameters. values:
    the arrays of these parameters. processor: the processor that will run the code; weights of products are
    packed by the host's code.
    """
    memory = np.zeros(constants.size, np.uint8)
    for offset, entry in constants.entries:
        if isinstance(entry, np.ndarray):
            copy_bytes(memory[offset:], entry)
        else:
            sources = [values[source.inside, source.number] for source in entry.sources]
            entry.fill(
                memory[offset:],
                sources,
                host_processor() if isinstance(entry, PackedParameters) else processor,
            )
    return memory


def across_step(net: Net, part: Part, in_place: Collection[int], what: str) -> AcrossStep:
    """Makes, for a C library, the operation of a schedule's part that repeats or reduces a value, or reads
    windows of its steps. in_place: the windows that are read in place. what: the part's number and kind, for
    the `RefusedError` if only NumPy can run it.
    """
    source, result = part.reads[0], part.results[0]
    for number in (*part.reads, result):
        check_extent(net.type_of(number).extent, net.nodes[number].source)
    if part.body is not None:
        check_extent(pairs_extent(part.body), net.nodes[result].source)
    across = Across.of(net, part, in_place)
    check_across(across, what)
    return AcrossStep(source, result, across)


def check_across(across: Across, what: str) -> None:
    """Raises `RefusedError` if only NumPy can compute a repetition or a reduction over steps, as a C
    library has no NumPy. what: the part's number and kind, for the message.
    """
    reason = refusal_of(across)
    if reason is not None:
        raise part_refusal(what, reason)
