"""Small wrong changes of a file of Python: a comparison turned, a constant one more, a statement left out.

A change is known by its function and the text before and after it, so that it stays the same when lines above
it come and go.
"""

import ast
import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

COMPARED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
COMPUTED: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.FloorDiv: ast.Mult,
    ast.Div: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.BitOr: ast.BitAnd,
    ast.BitAnd: ast.BitOr,
    ast.LShift: ast.RShift,
}
JOINED: dict[type[ast.boolop], type[ast.boolop]] = {ast.And: ast.Or, ast.Or: ast.And}
# What says nothing about results: types, messages of errors, and the words of `explain`.
UNTOUCHED = ast.Raise | ast.JoinedStr | ast.Import | ast.ImportFrom | ast.Assert
Scope = ast.FunctionDef | ast.ClassDef


@dataclass(frozen=True)
class Change:
    """One change of a file: where it is, what is written there, and what is written instead."""

    where: str
    line: int
    before: str
    after: str
    place: tuple[Any, ...]
    other: ast.AST

    def made(self, source: str) -> ast.Module:
        """The file with the change in it."""
        tree = ast.parse(source)
        put(tree, self.place, self.other)
        return ast.fix_missing_locations(tree)

    def __str__(self) -> str:
        return f"{self.where}: {self.before} -> {self.after}"


def changes(path: str, source: str) -> Iterator[Change]:
    """Every change of a file, from its first line to its last.

    >>> print(*changes("m.py", "def least(a, b):\\n    return a if a < b else b"), sep="\\n")
    m.py least: a if a < b else b -> b if a < b else a
    m.py least: a < b -> a <= b
    """
    tree = ast.parse(source)
    for place, scope in sites(tree, (), path.rsplit("/", 1)[-1]):
        node = node_at(tree, place)
        for other in instead(node):
            yield Change(scope, node.lineno, words(node), words(other), place, other)


def words(node: ast.AST) -> str:
    """The text of a node on one line; of an `if` its condition."""
    return f"if {words(node.test)}" if isinstance(node, ast.If) else " ".join(ast.unparse(node).split())


def sites(node: ast.AST, place: tuple[Any, ...], scope: str) -> Iterator[tuple[tuple[Any, ...], str]]:
    """Where something may be changed, as a path of fields, and the function that it is in."""
    if isinstance(node, UNTOUCHED):
        return
    if isinstance(node, ast.expr | ast.stmt) and not is_docstring(node):
        yield place, scope
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list", "keywords" if is_message(node) else ""):
            continue
        inner = f"{scope} {node.name}" if isinstance(node, Scope) else scope
        for at, child in enumerate(value) if isinstance(value, list) else [(None, value)]:
            if isinstance(child, ast.AST):
                yield from sites(child, (*place, (name, at)), inner)


def is_docstring(node: ast.AST) -> bool:
    """True if a statement is no more than text."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def is_message(node: ast.AST) -> bool:
    """True if a node makes an error."""
    return isinstance(node, ast.Call) and words(node.func).endswith("Error")


def node_at(tree: ast.AST, place: tuple[Any, ...]) -> Any:
    """The node that a path of fields leads to."""
    node: Any = tree
    for name, at in place:
        node = getattr(node, name) if at is None else getattr(node, name)[at]
    return node


def put(tree: ast.AST, place: tuple[Any, ...], other: ast.AST) -> None:
    """Puts a node where a path of fields leads."""
    parent, (name, at) = node_at(tree, place[:-1]), place[-1]
    if at is None:
        setattr(parent, name, other)
    else:
        getattr(parent, name)[at] = other


def instead(node: ast.AST) -> Iterator[ast.AST]:
    """The changed forms of a node, one after the other."""
    match node:
        case ast.Compare(ops=[operator, *_]):
            changed = copy.deepcopy(node)
            changed.ops[0] = COMPARED[type(operator)]()
            yield changed
        case ast.BinOp(op=operator) if type(operator) in COMPUTED:
            changed = copy.deepcopy(node)
            changed.op = COMPUTED[type(operator)]()
            yield changed
        case ast.BoolOp(op=operator):
            changed = copy.deepcopy(node)
            changed.op = JOINED[type(operator)]()
            yield changed
        case ast.UnaryOp(op=ast.Not(), operand=operand) | ast.UnaryOp(op=ast.USub(), operand=operand):
            yield copy.deepcopy(operand)
        case ast.Constant(value=bool() as value):
            yield ast.Constant(not value)
        case ast.Constant(value=int() as value):
            yield ast.Constant(value + 1)
        case ast.IfExp(test=test, body=body, orelse=orelse):
            yield ast.IfExp(copy.deepcopy(test), copy.deepcopy(orelse), copy.deepcopy(body))
        case ast.If(test=test):
            changed = copy.deepcopy(node)
            changed.test = ast.UnaryOp(ast.Not(), copy.deepcopy(test))
            yield changed
        case ast.Expr() | ast.AugAssign():
            yield ast.Pass()
        case _:
            pass
