"""Models and layers as the step of one recurrence, which a stream runs.

    h, _ = gru(table[words])                step(word, h):
    h, _ = lstm(h)                   ->         y, h0 = gru's step(table[word], h0)
    softmax(h @ W)                              y, (h1, c1) = lstm's step(y, (h1, c1))
                                                softmax(y @ W), (h0, (h1, c1))

The parts of the model's schedule are laid end to end in one body, as `one_step` copies them, so a step has
the bits of the whole call. The memories of all recurrences are the memory of the step, and so are the steps
that a causal convolution has read.

A value per sequence, such as a final memory or the last output, is a running value in a stream: after each
step it is the value that a call over the steps so far would return. It may be an output, or become one by
operations within a row. A model that needs later steps, or reads a final value at earlier steps, is refused.
"""

from collections.abc import Sequence
from dataclasses import field
from typing import Any

import numpy as np

from stepnet.compiler.net.ir import Builder, Net, Node, with_inputs
from stepnet.compiler.net.types import CONST, ROWS, STEPS, Type, is_derived, is_pairs
from stepnet.compiler.net.windows import Window, is_own_axis
from stepnet.compiler.plan.passes import Pipeline
from stepnet.compiler.plan.passes.prune import prune
from stepnet.compiler.plan.plan import Plan, Planning
from stepnet.compiler.plan.schedule import Part, Schedule
from stepnet.compiler.targets import Call, Order, choose, engines_of
from stepnet.compiler.targets.assignment import choice
from stepnet.compiler.trace.spec import Spec, TracedStep
from stepnet.compiler.values.once import computed_once
from stepnet.compiler.values.records import dataclass
from stepnet.compiler.values.structure import leaves, named_leaves
from stepnet.errors import InputError, RefusedError, named
from stepnet.model.layers import LayersProgram
from stepnet.model.nets import run_net
from stepnet.model.one_step import OneStep, reads_index, refusal
from stepnet.model.program import NetProgram, StepProgram
from stepnet.model.streams.memories import has_only_zeros
from stepnet.ragged.positions import Positions

Array = np.ndarray
AT_EACH_STEP = "; a stream has one step at a time"
IN_CHUNKS = "; graph.stream_chunks() takes chunks of steps, and gives the outputs that are ready"


def check_stream(net: Net) -> None:
    """Raises `InputError` for a model that a stream cannot run step by step."""
    if (reason := stream_refusal(net)) is not None:
        raise InputError(f"this model has no stream: {reason}")


def stream_refusal(net: Net, in_chunks: bool = False) -> str | None:
    """Returns the reason why a stream, which runs one step at a time, cannot run a model, with the user's
    line: an operation that needs other steps, or a step that reads a value of the whole sequence. None if it
    can.

    in_chunks: whether the stream takes chunks of steps, and gives outputs when they are ready.
    """
    so_far = set[int]()  # the values that a sequence has once, after its last step
    for number, node in enumerate(net.nodes):
        reason, reads_end = wrong_operation(net, node), not so_far.isdisjoint(node.inputs)
        later, advice = later_steps(node), "" if in_chunks else AT_EACH_STEP
        if reason is None and reads_end and (node.operation == "recur" or node.type.extent != ROWS):
            reason = "its steps read a value of the whole sequence, as a final memory or a last output"
        if reason is None and in_chunks and node.operation == "windows" and node.attributes.get("same"):
            reason = "the zeros around a sequence depend on its length, as with a stride and padding 'same'"
        if reason is None and later is not None and not in_chunks:
            reason, advice = later, IN_CHUNKS
        if reason is not None:
            return f"{reason} (at {node.source or node_text(net, number)}){advice}"
        if (reads_end or node.operation in ("reduce", "result")) and node.type.extent == ROWS:
            so_far.add(number)
    return None


def node_text(net: Net, number: int) -> str:
    """Returns the operation of a node and the names of the parameters that it reads, for messages. net,
    number: the net, and the number of the node in it.
    """
    node = net.nodes[number]
    named = [net.nodes[operand].name for operand in node.inputs if net.type_of(operand).extent == CONST]
    read = ", ".join(name for name in named if name)
    return f"%{number} = {node.operation}{f' of {read}' if read else ''}"


def wrong_operation(net: Net, node: Node) -> str | None:
    """Returns the reason why a stream, which has single steps, cannot run an operation; None if it can.

    net, node: the net of the model, and the operation in it.
    """
    if any(is_pairs(type_.extent) for type_ in node.types):
        return "its attention reads all steps of a sequence"
    if node.operation == "arrange":
        in_order = "its recurrence reads all steps of a sequence at each step"
        return "it has the steps of a sequence last first" if node.attributes["reverse"] else in_order
    if any(is_own_axis(type_.extent[-1]) for type_ in node.types if type_.extent):
        return "an input has steps of its own"
    extents = (type_.extent for type_ in node.types)
    if any(extent not in (CONST, ROWS, STEPS) and not is_derived(extent) for extent in extents):
        return "it has inner sequences"
    if node.operation == "recur" and node.recur.reverse:
        return "a recurrence of it begins at a sequence's last step"
    if node.operation == "reduce" and node.attributes["how"] != "last":
        if is_length(net, node):
            return "it reads the number of steps of a sequence"
        return f"it takes the {node.attributes['how']} over all steps of a sequence"
    return None


def later_steps(node: Node) -> str | None:
    """Returns the reason why an operation has no result at each step, though none needs a whole sequence, so
    that only a stream of chunks runs it; None if it has one.
    """
    if node.operation == "extend":
        return "copies of steps are put at the ends of its sequences"
    if any(is_derived(type_.extent) for type_ in node.types):
        return "it has other numbers of steps than its inputs, as after a stride"
    if node.operation == "overlap":
        return "it adds up windows of steps"
    if node.operation == "windows" and (after := Window.of(node.attributes).after):
        return f"a convolution of it reads {after} later step{'s' if after > 1 else ''}"
    return None


def is_length(net: Net, node: Node) -> bool:
    """Returns whether a reduction counts steps: whether it sums a constant that is repeated at each step.
    node: the reduction.
    """
    repeated = net.nodes[node.inputs[0]]
    counts_repeats = node.attributes["how"] == "sum" and repeated.operation == "expand"
    return counts_repeats and net.nodes[repeated.inputs[0]].operation == "constant"


@dataclass
class Composition:
    """The body (net of one step) of a whole model while it is made.

    net: the net of the model's schedule.
    has_barriers: whether barriers keep passes from regrouping sums; they stop gradients.
    values: the numbers in `builder` of the values of `net` so far.
    before, after: the memories of the recurrences so far, before and after the step.
    start: the values that the recurrences of a whole call begin with; None for zeros.
    specs: the structure of the memory of each recurrence, with a `Spec` (features, dtype) for each memory.
    """

    net: Net
    has_barriers: bool = True
    builder: Builder = field(default_factory=Builder)
    values: dict[int, int] = field(default_factory=dict[int, int])
    before: list[int] = field(default_factory=list[int])
    after: list[int] = field(default_factory=list[int])
    start: list[int | None] = field(default_factory=list["int | None"])
    specs: list[Any] = field(default_factory=list[Any])

    @property
    def inputs_by_kind(self) -> dict[Any, list[int]]:
        """The inputs of the model by extent: lists of their node numbers in the net of one step."""
        by_extent: dict[Any, list[int]] = {STEPS: [], ROWS: [], CONST: []}
        for number in self.net.inputs:
            by_extent[self.net.type_of(number).extent].append(self.values[number])
        return by_extent

    @computed_once
    def repeats(self) -> bool:
        """True if the model repeats a value at every step: the net of one step then needs more barriers
        (nodes across which the compiler moves nothing).

        Without them, the compiler could add up sums there in another order than in a call of whole sequences.
        """
        return any(n.operation == "expand" and n.type.extent == STEPS for n in self.net.nodes)

    def add_input(self, number: int) -> int:
        """Adds an input of the model to the body (the net of one step); returns its number there.

        An input with a value per step is one with a value per row (sequence) there.
        """
        node = self.net.nodes[number]
        extent = CONST if node.type.extent == CONST else ROWS
        self.values[number] = self.builder.input(node.type.at(extent), node.name)
        return self.values[number]

    def value(self, number: int) -> int:
        """Returns the number of a model's value in the net of one step; at first use it copies the operations
        that compute the value into that net.

        number: the number of the value in the model's net.
        """
        if number not in self.values:
            node = self.net.nodes[number]
            operands = [self.value(operand) for operand in node.inputs]
            if node.operation == "windows":
                self.values[number] = self.window(operands[0], Window.of(node.attributes))
            elif node.operation == "reduce" or (
                node.operation == "expand" and not self.is_constant(operands[0])
            ):
                # In a stream each step is the last one so far, and a value per row is the same at each step.
                self.values[number] = operands[0]
            else:
                changed: dict[str, Any] = {"extent": ROWS} if node.operation == "expand" else {}
                self.values[number] = self.builder.copy(node, operands, **changed)
        return self.values[number]

    def window(self, value: int, window: Window) -> int:
        """Adds a window (this step and earlier ones, which a convolution reads) to the net of one step;
        returns the number of its node. The earlier steps that it reads are a memory, which begins with zeros.

        value: the number of the value of this step there.
        """
        builder, type_ = self.builder, self.builder.type_of(value)
        rank, whole = len(type_.shape), [(0, size, 1) for size in type_.shape]
        own = builder.add("reshape", value, rank=rank, shape=(1, *type_.shape))
        if not window.reach:
            return own
        earlier = Type(ROWS, (window.reach, *type_.shape), type_.dtype)
        memory = builder.input(earlier, "earlier")
        steps = builder.add("concatenate", memory, own, axis=-rank - 1)

        def every(start: int, step: int) -> int:
            """Takes every `step`-th known step, from index `start` on."""
            return builder.add("slice", steps, slices=((start, window.reach + 1, step), *whole))

        self.before.append(memory)
        self.after.append(every(1, 1))
        self.start.append(None)
        self.specs.append(Spec(earlier.shape, earlier.dtype))
        read = every(0, window.dilation)
        return builder.add("detach", read) if self.has_barriers else read

    def is_constant(self, number: int) -> bool:
        """Returns whether a value of the net of one step is the same for all rows."""
        return self.builder.type_of(number).extent == CONST

    def add(self, part: Part, plan: Plan) -> None:
        """Adds a part of the model (operations that run together, as a recurrence) to the net of one step;
        records its memories and where they begin.

        Raises `InputError` for a part that cannot run one step at a time.

        part: the part, with the numbers of the values of the model's net that it reads and computes. A
            negative number stands for a result that nothing reads.
        plan: the operations of the part, in order.
        """
        if (reason := refusal(plan)) is not None:
            raise InputError(f"this model has no stream: {reason}{AT_EACH_STEP}")
        builder, recur = self.builder, plan.recurrence.recur
        index = builder.add("index") if reads_index(plan) else -1
        kept = [recur.body.nodes[number] for number in recur.memories]
        # The memory of a plain part is a dummy, which is the last result of its plan.
        new = [] if part.kind == "plain" else [builder.input(node.type, node.name) for node in kept]
        step = OneStep(builder, plan, index, {}, new or None, self.repeats, self.has_barriers)
        results, ends = step.results(self.operands(part, plan)), plan.ends
        by_kind = [results[place] for place in (*ends.steps, *ends.rows, *ends.totals)]
        by_kind = by_kind if new else by_kind[: len(part.results)]
        made = dict(zip(part.results, by_kind, strict=True))
        # A result that is an input of the model is there already.
        self.values |= {n: made[n] for n in made if n >= 0 and n not in self.net.inputs}
        if new:
            self.before += new
            self.after += step.following
            self.start += [None if begins_at_zeros(builder, number) else number for number in step.begins]
            self.specs.append(memory_specs(kept))

    def operands(self, part: Part, plan: Plan) -> list[int]:
        """Lists the operands of a part of the model by their numbers in the net of one step, in plan order.

        part: operations of the model that run together. A negative number in `part.reads` stands for zeros. A
        part of kind "plain" has no recurrence: its plan has a memory that is not used, which gets zeros.
        plan: the operations of the part, in order.
        """
        ends, net = plan.ends, plan.net
        reads = part.reads if part.kind != "plain" else (*part.reads, *[-1] * len(ends.memories))
        positions = (*ends.sequences, *ends.memories, *ends.statics, *ends.parameters)
        numbers = dict(zip(positions, (*reads, *part.parameters), strict=True))
        return [
            self.zeros(net.nodes[net.inputs[index]]) if numbers[index] < 0 else self.value(numbers[index])
            for index in range(len(numbers))
        ]

    def zeros(self, node: Node) -> int:
        """Adds zeros for each row to the net of one step, of a node's type; returns their number there."""
        zeros = self.builder.constant(np.zeros(node.type.shape, node.type.dtype))
        return self.builder.add("expand", zeros, extent=ROWS)


def begins_at_zeros(builder: Builder, number: int) -> bool:
    """Returns whether a value of a net is zeros for each row, made from a constant; -0.0 is not zero here.
    builder: the net. number: the number of the value.
    """
    node = builder.nodes[number]
    if node.operation in ("expand", "detach"):
        return begins_at_zeros(builder, node.inputs[0])
    return node.operation == "constant" and has_only_zeros(node.attributes["value"].value)


def memory_specs(nodes: Sequence[Node]) -> Any:
    """Returns the structure of a recurrence's memory, with a `Spec` (features and dtype) in place of each
    array: a single one, or a dict by the names of the arrays.

    nodes: the inputs of the step that are memories. Without unique names the structure is a tuple.
    """
    specs = [Spec(node.type.shape, node.type.dtype) for node in nodes]
    names = [node.name for node in nodes]
    if len(specs) == 1:
        return specs[0]
    return dict(zip(names, specs, strict=True)) if len({*names} - {""}) == len(names) else tuple(specs)


@dataclass(frozen=True)
class ComputedBeginning:
    """Computes the initial memories of a model from its statics and parameters.

    program: of a net whose inputs are the statics and the parameters, and whose results are these memories.
    params: the parameters, in the order of the net.
    places: the positions of these memories among all memories of the step.
    """

    program: NetProgram
    params: Sequence[Array]
    places: tuple[int, ...]

    def add_to(self, builder: Builder, inputs: Sequence[int]) -> dict[int, int]:
        """Adds the operations that compute initial memories from statics (values that each sequence has once)
        and parameters to a net; returns {position of the memory: number of its value in the net}.

        inputs: the numbers of values of the net, with the statics and the parameters at the end.
        """
        net = self.program.net
        made = dict(zip(net.inputs, inputs[len(inputs) - len(net.inputs) :], strict=True))
        for number, node in enumerate(net.nodes):
            if number not in made:
                made[number] = builder.copy(node, [made[operand] for operand in node.inputs])
        return {place: made[result] for place, result in zip(self.places, net.results, strict=True)}

    def memories(self, statics: Sequence[Array], count: int, engine: Order) -> dict[int, Array]:
        """Computes initial memories of `count` sequences from statics (values that each sequence has once);
        returns {position of the memory: array}. engine: the engines in order of preference.
        """
        call = Call(Positions.end_to_end(np.arange(count + 1)))
        memories = run_net(self.program, [*statics, *self.params], call, engine)
        return dict(zip(self.places, memories, strict=True))


def composition(schedule: Schedule, passes: Pipeline | None = None) -> Composition:
    """Adds all parts of a model, one after the other, to the net of one step, to run the model in a stream.

    Raises `InputError` for a model that has no stream.

    schedule: the parts of the model in the order they run, with their plans (which operation runs when).
    passes: the passes of each part, in place of the compiler's optimisations, and without barriers; such a
    net may differ from a call by rounding, has a gradient, and the same memories.
    """
    check_stream(schedule.traced)
    composed_net = Composition(schedule.net, passes is None)
    for number in schedule.net.inputs:
        composed_net.add_input(number)
    for part in schedule.parts:
        if (plan := part.plan) is not None:
            own = plan if passes is None else plan.planned(Planning(passes, plan.planning.costs))
            composed_net.add(part, own)
    return composed_net


def composed(
    schedule: Schedule,
    inputs: Any,
    statics: Any,
    params: Sequence[Array],
    output: Any,
    differentiable: bool = False,
) -> StepProgram:
    """Makes the program of one step of a whole model; raises `InputError` if the model has no stream.

    schedule: the parts of the model in the order they run, with their plans (which operation runs when).
    inputs, statics: the structures of the model's inputs, with a `Spec` (features and dtype) for each.
    params: its parameters, in the order of the net.
    output: the structure of its outputs.
    differentiable: makes a step that has a gradient, for which it may differ by rounding.
    """
    composition_of_parts = composition(schedule, (prune,) if differentiable else None)
    net = schedule.net
    by_kind = composition_of_parts.inputs_by_kind
    results = [composition_of_parts.value(number) for number in net.results]
    still = [*by_kind[ROWS], *by_kind[CONST]]
    body = with_inputs(
        composition_of_parts.builder,
        [*by_kind[STEPS], *composition_of_parts.before, *still],
        [*results, *composition_of_parts.after],
    )
    memory = (
        composition_of_parts.specs[0]
        if len(composition_of_parts.specs) == 1
        else tuple(composition_of_parts.specs)
    )
    program = program_of(body, inputs, memory, statics, params, output)
    started = {index: number for index, number in enumerate(composition_of_parts.start) if number is not None}
    if started:
        begin = NetProgram(with_inputs(composition_of_parts.builder, still, started.values()))
        program.begin = ComputedBeginning(begin, params, tuple(started))
    return program


def composed_layers(program: LayersProgram, inputs: Any, engine: Order) -> StepProgram | None:
    """Makes the program of one step of all layers of a stack, for a stream; its memories are the memories of
    the layers, in order.

    Returns None for layers that do not run as one step with the same bits: on another engine than in a call,
    or with memories that a call begins in another way.

    program: the program of the layers, for flat inputs without statics (values that each sequence has once).
    inputs: the `Spec`s (features and dtypes) of the inputs.
    engine: the engines in order of preference.
    """
    schedule = program.schedule_for(engine)
    memory = [spec for own in program.memories_of for spec in leaves(own)]
    try:
        composed_net = composition(schedule)
        if composed_net.start != [
            composed_net.values[schedule.net.inputs[index]] for index in program.ends.memories
        ]:
            return None
        kinds = [composed_net.builder.type_of(number) for number in composed_net.before]
        if [(kind.shape, kind.dtype) for kind in kinds] != [(spec.shape, spec.dtype) for spec in memory]:
            return None
        results = [composed_net.value(n) for n in schedule.net.results[: len(leaves(program.output))]]
        by_kind = composed_net.inputs_by_kind
        body = with_inputs(
            composed_net.builder,
            [*by_kind[STEPS], *composed_net.before, *by_kind[CONST]],
            [*results, *composed_net.after],
        )
        step = program_of(body, inputs, tuple(memory), None, program.params, program.output)
        step_schedule = step.schedule_for(engine)
        check_engines(schedule, step_schedule, engine)
        if not choose(step_schedule, engine)[0].has_same_bits:
            return None
    except (InputError, RefusedError):  # what the layers refuse on their own they refuse themselves
        return None
    return step


def program_of(
    body: Net, inputs: Any, memory: Any, statics: Any, params: Sequence[Array], output: Any
) -> StepProgram:
    """Returns the program of a step of a stream.

    body: the net of the step.
    inputs, memory, statics: their structures, with a `Spec` (features and dtype) for each.
    params: the parameters, in the order of the body.
    output: the structure of the outputs.
    """
    names = tuple(name or "output" for name, _ in named_leaves(output))
    traced = TracedStep(body, inputs, memory, statics, list(params), output, names, memory)
    return StepProgram(traced, reverse=False, unroll=1)


def check_engines(schedule: Schedule, step: Schedule, asked: Order) -> None:
    """Raises `InputError` if a stream's step runs on another engine than a call's parts, so that the two
    would not be bitwise identical.

    schedule: the parts of the model with their plans (which operation runs when).
    step: the whole model as one step.
    asked: the engines that were requested, in order of preference.
    """
    engines = engines_of(asked)
    parts = {engine.name for plan in schedule.plans if (engine := choice(plan, engines).engine) is not None}
    with named("a step of the whole model"):
        steps = choose(step, asked)[0].name
    if parts and parts != {steps}:
        raise InputError(
            f"with these engines the parts of the model run on {', '.join(sorted(parts))}, and a step of the "
            f"whole model on {steps}, with other bits: give engine={steps!r} to calls and streams"
        )
