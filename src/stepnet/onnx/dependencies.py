"""Finds the nodes of an ONNX model on which values depend, and what bodies read of the graphs around them."""

from collections.abc import Iterable, Mapping
from typing import Any

from stepnet.layout.files.onnx.graph import GraphNode, GraphScope, Key, Output, Walk, find
from stepnet.layout.files.onnx.tensor import text
from stepnet.onnx.names import row_of


def needed(
    walk: Walk,
    scope: GraphScope,
    names: Iterable[str],
    known: Mapping[Key, Any],
    inside: GraphScope | None = None,
) -> list[GraphNode]:
    """Lists the nodes on which values depend, in the order of the file, which is an order of execution.

    walk: all nodes of the model. scope, names: the values, by the graph whose names these are. known: values
    that exist already, whose nodes are not needed, by (scope, name). inside: a body (the graph of a Scan or
    Loop); nodes outside of it are left out. None for all nodes.
    """
    required, pending = set[GraphNode](), [find(scope, name) for name in names]
    seen = set[Key]()
    while pending:
        scope_of_value, name, source = pending.pop()
        if (scope_of_value, name) in known or (scope_of_value, name) in seen:
            continue
        seen.add((scope_of_value, name))
        if isinstance(source, Output) and (inside is None or within(scope_of_value, inside)):
            required.add(source.node)
            pending += [find(source.node.scope, operand) for operand in source.node.inputs if operand]
            for graph, body in run_bodies(walk, source.node):
                pending += outer_reads(walk, graph, body)
    return [node for node in walk.nodes if node in required]


def run_bodies(walk: Walk, node: GraphNode) -> list[Any]:
    """Lists the bodies of a node that are run whatever its operands are, as (graph, scope): none of an If."""
    return [] if node.op == "If" else list(walk.bodies.get(node, {}).values())


def within(scope: GraphScope | None, body: GraphScope) -> bool:
    """Tells whether a scope of names belongs to a body (the graph of a Scan or Loop), or is nested in it."""
    while scope is not None and scope is not body:
        scope = scope.outer
    return scope is body


def outer_reads(walk: Walk, graph: Any, body: GraphScope) -> list[Any]:
    """Lists the values outside a Scan's or Loop's body, or a branch, that it reads, as (scope, name, source):
    the graph that has the name, and the node output or array behind it. walk: the nodes of the model. graph,
    body: the body, and its scope of names.
    """
    if body not in walk.reads:
        walk.reads[body] = found_reads(walk, graph, body)
    return walk.reads[body]


def found_reads(walk: Walk, graph: Any, body: GraphScope) -> list[Any]:
    """Lists the values outside of a body (the graph of a Loop, a Scan or an If) that its needed nodes read:
    the result of `outer_reads`, for a body for which it is not known yet.
    """
    nodes = needed(walk, body, [text(value.name) for value in graph.output], {}, inside=body)
    ends = [find(body, text(value.name)) for value in graph.output]
    sources = [find(node.scope, name) for node in nodes for name in node.inputs if name]
    inner = [own for node in nodes for own in walk.bodies.get(node, {}).values()]
    sources += [entry for graph_, body_ in inner for entry in outer_reads(walk, graph_, body_)]
    return [entry for entry in (*sources, *ends) if not within(entry[0], body)]


def unsupported(walk: Walk, scope: GraphScope, names: Iterable[str]) -> list[GraphNode]:
    """Lists the nodes on which values depend and whose operators stepnet does not support, to refuse a model
    with them. Nodes in the branches of an If are left out, as a branch may never run. walk: the nodes of the
    model. scope, names: the values, by names in the graph `scope`.
    """
    nodes = set(needed(walk, scope, names, {}))
    for owner in walk.nodes:  # outer bodies precede their inner ones
        for graph, body in run_bodies(walk, owner) if owner in nodes else ():
            nodes |= set(needed(walk, body, [text(value.name) for value in graph.output], {}, inside=body))
    return [node for node in walk.nodes if node in nodes and row_of(node.domain, node.op) is None]
