"""The recurrent layers that a program of torch.export calls, and everything around them, from its JSON.

    nodes: zeros, lstm.input(x, [zeros, zeros_1], b.*) -> y, gru.input(y, zeros_2, a.*) -> z     outputs: z
        calls: b. over x, a. over b.        around: nothing
    nodes: lstm.input(x, ...) -> y, linear(y) -> z                                               outputs: z
        calls: one over x                   around: z (linear.default), z (an output)

1  A recurrent operator that the outputs depend on is a call. Its weights say which layer of the file it is.
2  Zeros for initial states, sizes, and checks of sizes are a part of the calls.
3  Everything else is around them: operators, further inputs and outputs, and uses of a call that a row of
   layers does not express. A program with nothing around its calls is a row of layers.

The shapes of states are not checked: torch.export has run the program.

Source: torch/_export/serde/schema.py of PyTorch 2.13.
"""

from collections.abc import Iterator, Mapping
from dataclasses import field
from typing import Any, cast

from stepnet.compiler.values.records import dataclass

ATEN = "torch.ops.aten."
RECURRENT: dict[str, tuple[tuple[str, ...], dict[str, str]]] = {
    "lstm.input": (("torch.lstm", "torch.lstm_projection"), {}),
    "gru.input": (("torch.gru",), {}),
    "rnn_tanh.input": (("torch.rnn",), {"candidate_activation": "tanh"}),
    "rnn_relu.input": (("torch.rnn",), {"candidate_activation": "relu"}),
}
"""The layouts and the semantics that a recurrent operator specifies."""
ZEROS = ("zeros.default", "new_zeros.default", "zeros_like.default")
FILLED = ("full.default", "new_full.default", "full_like.default")
MOVES = (  # operators that return zeros for zeros
    *("view.default", "reshape.default", "expand.default", "permute.default", "transpose.int"),
    *("unsqueeze.default", "squeeze.dim", "slice.Tensor", "select.int", "repeat.default"),
    *("to.dtype", "to.device", "to.dtype_layout", "_to_copy.default"),
)
SAME = ("contiguous.default", "clone.default", "detach.default")
DROPOUT = "dropout.default"
SIZES = ("sym_size.int", "sym_numel.default", "_assert_tensor_metadata.default")
NUMBERS = frozenset(
    {
        *("as_int", "as_ints", "as_float", "as_floats", "as_bool", "as_bools", "as_string", "as_none"),
        *("as_sym_int", "as_sym_ints", "as_sym_float", "as_sym_bool"),
    }
)
HELD = {"parameter": "parameter_name", "buffer": "buffer_name", "tensor_constant": "tensor_constant_name"}


@dataclass(frozen=True)
class OperatorCall:
    """A call of a recurrent operator in a torch.export program.

    Attributes:
        name: Its layer and operator, for messages.
        weights: The names of its weights in the file.
        layouts: The layouts that its operator has.
        semantics: The semantics that its operator specifies.
        follows: The source of its sequence: the prefix of the layer before it, an input, or another node.
        batch_first: Whether the batch is the first axis of its sequences.
        sequence: The name of its outputs at all steps.
    """

    name: str
    weights: tuple[str, ...]
    layouts: tuple[str, ...]
    semantics: Mapping[str, str]
    follows: str
    batch_first: bool
    sequence: str

    @property
    def weights_text(self) -> str:
        """Text of a torch.export program's report on a call whose weights are not one torch.nn layer's."""
        return f"the weights of {self.name}, which are not those of a layer of torch.nn"


@dataclass(frozen=True)
class RecurrentProgram:
    """The computation of a torch.export program, as far as it consists of recurrent layers.

    Attributes:
        calls: Its recurrent operators, in its order.
        around: The names and operators of everything else.
        inputs: The names of the inputs that are given when it runs.
        uses: The place of the first operator that takes a weight, by the weight's name.
    """

    calls: tuple[OperatorCall, ...] = ()
    around: tuple[str, ...] = ()
    inputs: tuple[str, ...] = ()
    uses: Mapping[str, int] = field(default_factory=dict[str, int])


@dataclass
class ComputedValues:
    """The values that the operators of a torch.export program have computed so far, by name.

    weights: the names of weights in the file. sources: texts that say what computes a value. aliases: values
    that are another one unchanged. zeros: values that are zeros. called: the weights of each recurrent call.
    """

    weights: dict[str, str]
    sources: dict[str, str]
    aliases: dict[str, str] = field(default_factory=dict[str, str])
    zeros: set[str] = field(default_factory=set[str])
    called: set[tuple[str, ...]] = field(default_factory=set[tuple[str, ...]])


def program_of(document: Mapping[str, Any]) -> RecurrentProgram:
    """Parses the JSON of a torch.export program (`document`): returns its calls of recurrent layers in order,
    texts on everything else that it does, its inputs, and the first use of each weight.
    """
    module = table(document.get("graph_module"))
    graph, signature = table(module.get("graph")), table(module.get("signature"))
    specs = rows(signature.get("input_specs"))
    inputs = [name for spec in specs for name in names(table(spec.get("user_input")).get("arg"))]
    weights = dict(held for spec in specs for held in weight_names(spec))
    state = ComputedValues(weights, {**weights, **{name: name for name in inputs}})
    nodes = rows(graph.get("nodes"))
    live = live_nodes(nodes, graph.get("outputs"))
    calls, around, uses = list[OperatorCall](), list[str](), dict[str, int]()
    for index, node in enumerate(nodes):
        operator, outputs = operator_of(node), [*names(node.get("outputs"))]
        if is_part_of_calls(node, state):
            continue
        if operator not in RECURRENT:
            around.append(title(node))
            state.sources.update(dict.fromkeys(outputs, title(node)))
        elif live[index]:
            call = call_of(node, state)
            around += unexpressed(node, call, calls, state)
            calls.append(call)
        else:
            continue
        for name in names([argument.get("arg") for argument in rows(node.get("inputs"))]):
            uses.setdefault(weights.get(name, name), index)
    if calls:
        others = other_outputs(rows(graph.get("outputs")), calls[-1].sequence, state)
        listed_operators = {*around}
        around += [
            f"{name} (an output)" for name in others if state.sources.get(name) not in listed_operators
        ]
    if len(inputs) != 1:
        around += [f"{name} (an input)" for name in sorted(inputs)]
    return RecurrentProgram(tuple(calls), tuple(around), tuple(inputs), uses)


# ---- operators ---------------------------------------------------------------------------------------------


def is_part_of_calls(node: dict[str, Any], state: ComputedValues) -> bool:
    """Handles a node (an operator's call, in JSON) of a torch.export program that need not be reported to the
    user beside the recurrent calls: an operator that makes zeros, handles sizes, or returns a value
    unchanged. Returns True for such a node, and records in `state` which of its outputs are zeros or another
    value unchanged; returns False for any other node.
    """
    operator, inputs = operator_of(node), arguments(node)
    outputs, input_names = [*names(node.get("outputs"))], [*names(inputs.get("self", inputs.get("input")))]
    if operator in SIZES or all(is_number(value) for value in (*inputs.values(), *rows(node.get("outputs")))):
        return True
    if is_zeros(operator, inputs) or (
        operator in (*MOVES, *SAME) and input_names and state.zeros.issuperset(input_names)
    ):
        state.zeros.update(outputs)
        state.sources.update(dict.fromkeys(outputs, title(node)))
        return True
    if operator in SAME or (operator == DROPOUT and not drops_numbers(inputs.get("p"), inputs)):
        if len(input_names) != 1 or len(outputs) != 1 or input_names[0] not in state.sources:
            return False
        for known in (state.sources, state.aliases):
            known[outputs[0]] = known.get(input_names[0], input_names[0])
        if input_names[0] in state.weights:
            state.weights[outputs[0]] = state.weights[input_names[0]]
        return True
    return False


def is_zeros(operator: str, inputs: Mapping[str, Any]) -> bool:
    """Returns True if an operator of a torch.export program makes zeros. inputs: its arguments by name."""
    value = table(inputs.get("fill_value"))
    return operator in ZEROS or (operator in FILLED and number(value) == 0)


def drops_numbers(probability: object, arguments: Mapping[str, Any]) -> bool:
    """Returns True if a dropout operator of a torch.export program may change numbers: unless its argument
    train is False or its probability is 0. arguments: its arguments by name.
    """
    return table(arguments.get("train")).get("as_bool") is not False and number(probability) != 0


def call_of(node: dict[str, Any], state: ComputedValues) -> OperatorCall:
    """Converts a node of a torch.export program with a recurrent operator, such as aten.gru, to a call of the
    layer that has its weights, with the source of its input; records its outputs in `state`, for later nodes.
    """
    inputs, operator, outputs = arguments(node), operator_of(node), [*names(node.get("outputs"))]
    weights = tuple(state.weights.get(name, name) for name in names(inputs.get("params")))
    prefix = weights[0].removesuffix("weight_ih_l0") if weights else ""
    name = f"{prefix[:-1]} (aten.{operator})" if prefix.endswith(".") else title(node)
    (input_names,) = [*names(inputs.get("input"))][:1] or [""]
    state.sources.update(dict.fromkeys(outputs, f"the final states of {name}"))
    state.sources.update(dict.fromkeys(outputs[:1], prefix))
    return OperatorCall(
        name,
        weights,
        *RECURRENT[operator],
        follows=state.sources.get(input_names, input_names),
        batch_first=table(inputs.get("batch_first")).get("as_bool") is True,
        sequence=outputs[0] if outputs else "",
    )


def unexpressed(
    node: dict[str, Any], call: OperatorCall, before: list[OperatorCall], state: ComputedValues
) -> Iterator[str]:
    """Yields the differences between a recurrent call of a torch.export program and a call of a plain layer
    after the layer before it, such as a dropout or an initial state, as texts for `RecurrentProgram.around`;
    records in `state` that its weights were called.

    node: the node of the call. before: the calls before it.
    """
    inputs = arguments(node)
    if state.sources.keys().isdisjoint(names(inputs.get("input"))):
        yield f"the input of {call.name}"
    initial = [*names(inputs.get("hx"))]
    if not initial or not state.zeros.issuperset(initial):
        yield f"the initial state of {call.name}"
    if drops_numbers(inputs.get("dropout"), inputs):
        yield f"the dropout of {call.name}"
    if before and call.batch_first != before[0].batch_first:
        yield f"the batch_first of {call.name}, which is not that of {before[0].name}"
    if not is_in_order(call.weights, inputs):
        yield call.weights_text
    if call.weights in state.called:
        yield f"{call.name}, called again"
    state.called.add(call.weights)


def is_in_order(weights: tuple[str, ...], inputs: Mapping[str, Any]) -> bool:
    """Returns True if weights are all weights of one torch.nn layer, in PyTorch's order: by layer, direction
    and kind (weight_ih, weight_hh, both biases, projection). inputs: the call's arguments.
    """
    kinds = ["weight_ih", "weight_hh"]
    if table(inputs.get("has_biases")).get("as_bool") is not False:
        kinds += ["bias_ih", "bias_hh"]
    directions = ["", "_reverse"] if table(inputs.get("bidirectional")).get("as_bool") is True else [""]
    layers = table(inputs.get("num_layers")).get("as_int")
    if not isinstance(layers, int) or not 0 < layers <= len(weights):
        return False
    kinds += ["weight_hr"] * (len(weights) == layers * len(directions) * (len(kinds) + 1))
    prefix = weights[0].removesuffix("weight_ih_l0")
    ordered = [
        f"{prefix}{kind}_l{layer}{direction}"
        for layer in range(layers)
        for direction in directions
        for kind in kinds
    ]
    return [*weights] == ordered


def other_outputs(outputs: list[dict[str, Any]], sequence: str, state: ComputedValues) -> Iterator[str]:
    """Yields the names of the outputs of a torch.export program that a row of recurrent layers does not
    return: all but None and, once, the outputs of its last recurrent layer at all steps, whose name is
    `sequence`.

    outputs: the outputs, from the program's JSON.
    state: the values so far; its `aliases` name the value to which a name is equal.
    """
    seen = False
    for output in outputs:
        name = next(names(output), "a number")
        if not seen and state.aliases.get(name, name) == sequence:
            seen = True
        elif "as_none" not in output:
            yield name


def live_nodes(nodes: list[dict[str, Any]], outputs: object) -> list[bool]:
    """Returns a flag for each node of a torch.export program: True if the program's outputs depend on it."""
    needed_names, live = {*names(outputs)}, list[bool]()
    for node in reversed(nodes):
        live.append(not needed_names.isdisjoint(names(node.get("outputs"))))
        if live[-1]:
            needed_names.update(names([argument.get("arg") for argument in rows(node.get("inputs"))]))
    return live[::-1]


# ---- parts of the document ---------------------------------------------------------------------------------


def table(value: object) -> dict[str, Any]:
    """Returns a JSON value if it is an object, else an empty one, so that untrusted files raise no errors."""
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def rows(value: object) -> list[dict[str, Any]]:
    """Returns the objects in a JSON array, else [], so that untrusted files raise no errors."""
    return [table(item) for item in cast("list[object]", value)] if isinstance(value, list) else []


def operator_of(node: dict[str, Any]) -> str:
    """Returns the operator's name of a torch.export program's node, without "torch.ops.aten."."""
    return str(node.get("target"))[:200].removeprefix(ATEN)


def title(node: dict[str, Any]) -> str:
    """Returns the name of a node of a torch.export program for messages: its first output and operator."""
    target = str(node.get("target"))[:200].removeprefix("torch.ops.")
    return f"{next(names(node.get('outputs')), 'a node')} ({target})"


def arguments(node: dict[str, Any]) -> dict[str, Any]:
    """Returns the arguments of a node of a torch.export program by name, as JSON values."""
    return {str(argument.get("name")): argument.get("arg") for argument in rows(node.get("inputs"))}


def weight_names(spec: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yields (name in the program, name in the file) of the weights that an input of a torch.export program
    stands for. spec: the JSON description of the input.
    """
    for kind, key in HELD.items():
        inner = table(spec.get(kind))
        for name in names(inner.get("arg")):
            yield name, str(inner.get(key))[:1000]


def number(value: object) -> float | None:
    """Returns the number in the JSON value of an operator's argument; None if it is no number."""
    return next((table(value)[key] for key in ("as_float", "as_int") if key in table(value)), None)


def is_number(value: object) -> bool:
    """Returns True if an argument in a torch.export program is a number or numbers, and no tensor."""
    return bool(table(value)) and NUMBERS.issuperset(table(value))


def names(value: object) -> Iterator[str]:
    """Yields the names of all values in a part of a torch.export program's JSON, at any depth."""
    pending = [value]
    while pending:
        value = pending.pop()
        if isinstance(value, list):
            pending.extend(reversed(cast("list[object]", value)))
        elif isinstance(value, dict):
            fields = cast("dict[str, Any]", value)
            yield from (fields[key][:200] for key in ("name", "as_name") if isinstance(fields.get(key), str))
            pending.extend(reversed(fields.values()))
