"""The operators around the recurrent layers of a program of torch.export, read from its JSON.

    nodes: zeros, lstm.input(x, [zeros, zeros_1]) -> y     outputs: y      ()
    nodes: lstm.input(x, ...) -> y, linear(y) -> z         outputs: z      ("z (aten.linear.default)",)

A program whose operators are one recurrent layer over its input, from zeros, has nothing around it.

Source: torch/_export/serde/schema.py of PyTorch 2.13.
"""

from collections.abc import Iterator
from typing import Any, cast

RECURRENT = tuple(f"torch.ops.aten.{name}.input" for name in ("lstm", "gru", "rnn_tanh", "rnn_relu"))
ZEROS = "torch.ops.aten.zeros.default"
STATES = "hx"


def table(value: object) -> dict[str, Any]:
    """A JSON object; an empty one for any other value."""
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def rows(value: object) -> list[dict[str, Any]]:
    """The objects of a JSON array; none for any other value."""
    return [table(item) for item in cast("list[object]", value)] if isinstance(value, list) else []


def around(program: dict[str, Any]) -> tuple[str, ...]:
    """The names and operators of a program besides one recurrent layer over its input."""
    module = table(program.get("graph_module"))
    graph, signature = table(module.get("graph")), table(module.get("signature"))
    return tuple(found(graph, {*user_inputs(signature)}))


def user_inputs(signature: dict[str, Any]) -> Iterator[str]:
    """The names of the inputs that are given when a program runs."""
    for spec in rows(signature.get("input_specs")):
        yield from tensors(table(spec.get("user_input")).get("arg"))


def found(graph: dict[str, Any], inputs: set[str]) -> Iterator[str]:
    """As `around`, for the graph of a program with these inputs."""
    zeros, sequences, states = set[str](), list[str](), set[str]()
    for node in rows(graph.get("nodes")):
        target, outputs = str(node.get("target"))[:200], [*tensors(node.get("outputs"))]
        name = f"{outputs[0] if outputs else 'a node'} ({target.removeprefix('torch.ops.')})"
        arguments = {str(each.get("name")): each.get("arg") for each in rows(node.get("inputs"))}
        if target == ZEROS:
            zeros.update(outputs)
        elif target not in RECURRENT or sequences:
            yield name
        else:
            sequences += outputs[:1]
            states.update(outputs[1:])
            if not inputs & {*tensors(arguments.get("input"))}:
                yield f"the input of {name}"
            if not {*tensors(arguments.get(STATES))} <= zeros:
                yield f"the initial state of {name}"
            if table(arguments.get("train")).get("as_bool") is not False:
                yield f"the dropout of {name}"
    results = [*tensors(graph.get("outputs"))]
    if sequences and results != sequences:
        yield from (f"{each} (an output)" for each in results if each not in sequences or each in states)
    if len(inputs) != 1:
        yield from (f"{each} (an input)" for each in sorted(inputs))


def tensors(value: object) -> Iterator[str]:
    """The names of the tensors in a part of a program, which may be nested in lists."""
    pending = [value]
    while pending:
        value = pending.pop()
        if isinstance(value, list):
            pending.extend(reversed(cast("list[object]", value)))
        elif isinstance(value, dict):
            node = cast("dict[str, Any]", value)
            single = table(node.get("as_tensor")).get("name", node.get("name") if len(node) == 1 else None)
            if isinstance(single, str):
                yield single[:200]
            pending.extend(node.get(key) for key in ("as_tensors", "as_optional_tensor") if key in node)
