"""The graph of a torch.export program, from its JSON, as a graph of ATen operations.

    {"target": "torch.ops.aten.tanh.default", "inputs": [{"name": "self", "arg": {"as_tensor": ...}}],
     "outputs": [{"as_tensor": {"name": "tanh"}}]}                        ->   tanh.default(x)

    {"expr_str": "Mul(Integer(2), Symbol('s15', ...))"}                   ->   2 x sequences

Operations that do not change their result are left out: checks of sizes. One in place becomes the same that
gives a new value, if nothing reads the old one. Everything is checked, as the file may be damaged.

Source: torch/_export/serde/schema.py of PyTorch 2.13, version 8 of the schema.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import field
from typing import Any, cast

from stepnet.compiler.values.records import dataclass
from stepnet.errors import FileError, StepnetError, printable
from stepnet.importers.aten.arguments import misplaced
from stepnet.importers.aten.graph import (
    ARGUMENT,
    CALL,
    ITEM,
    AtenGraph,
    AtenNode,
    InferredTensor,
    SymbolicSize,
)
from stepnet.importers.aten.kept import DEFAULTS, EXPORTED
from stepnet.importers.aten.rows import AtenOperation
from stepnet.importers.sizes import Size
from stepnet.importers.values import MOST
from stepnet.layout.files.pickles.exported import DTYPES
from stepnet.layout.files.pickles.program import ATEN, live_nodes, names, operator_of, rows, table, title

Json = dict[str, Any]
Polynomial = dict[tuple[str, ...], int]

VERSIONS = range(5, 9)
"""The major versions of the schema that are read."""
CHECKS = re.compile(r"(_assert|sym_constrain_range|_operator[.]|sym_size[.]|sym_numel[.])")
"""Operators that check sizes or compute them, whose results are read as expressions."""
LONGEST = 1 << 16
"""The most characters of the description of the outputs' structure."""
TERMS = 32
"""The most terms of an expression of sizes."""
VIEWS = re.compile(
    r"(view|reshape|transpose|permute|t|slice|select|narrow|squeeze|unsqueeze|expand|unbind|chunk|split\w*|"
    r"flatten|unflatten|detach|alias|view_as|expand_as|contiguous|to|type_as|dropout)[.]"
)
"""Operators whose results may share numbers with their operands."""
WRITES = re.compile(r"(\w*[^_\W])_[.]")
"""Operators that change their first operand in place, such as relu_.default."""
EFFECTS = re.compile(r"__i\w+__[.]|.*[._]out$")
"""Other operators that change an operand."""


def checked_schema(document: Json) -> None:
    """Raises `FileError` for a torch.export program that is written in a version of torch.export's JSON
    schema which stepnet does not read.
    """
    version = table(document.get("schema_version")).get("major")
    if version not in VERSIONS:
        raise FileError(
            f"its program has version {str(version)[:20]} of torch.export's schema, and versions "
            f"{VERSIONS[0]} to {VERSIONS[-1]} are read"
        )


def output_names(module: Json, values: list[str]) -> tuple[str, ...]:
    """Returns a name for each output of a torch.export program: the keys, if the module returns a dict of
    tensors, else the names of the values.

    module: the program in JSON. values: the names of the values that are outputs.
    """
    called = [*rows(module.get("module_call_graph")), Json()]
    text = table(called[0].get("signature")).get("out_spec")
    spec, keys = Json(), list[Any]()
    try:
        if isinstance(text, str) and len(text) < LONGEST:
            spec = table(json.loads(text)[1])
        if spec.get("type") == "builtins.dict":
            keys = checked_entries(json.loads(spec["context"]))
    except StepnetError:
        raise
    except (ValueError, LookupError, TypeError, RecursionError):
        pass  # it is no dict, so that outputs have the names of values
    texts = [key for key in keys if isinstance(key, str) and key.isprintable()]
    chosen = texts if len(texts) == len(values) == len(rows(spec.get("children_spec"))) else values
    return tuple(f"{name}_{at}" if name in chosen[:at] else name for at, name in enumerate(chosen))


# ---- expressions of sizes ----------------------------------------------------------------------------------

TOKENS = re.compile(r"\s*(?:(\w+)\(|([),])|(-?\d+)|('\w+')|(\w+=\w+)|(\w+)|([*]))")


def polynomial(text: str) -> Polynomial | None:
    """Reads the text of an expression of symbolic sizes, such as "2*s0 + 1", as a polynomial: the factor of
    each product of symbols. None for any other text.

    >>> polynomial("Add(Mul(Integer(2), Symbol('s15', positive=True, integer=True)), Integer(-1))")
    {('s15',): 2, (): -1}
    >>> polynomial("2*s15")
    {('s15',): 2}
    >>> polynomial("floor(s15)")
    """
    stack: list[tuple[str, list[Polynomial]]] = [("Add", [])]
    place = 0
    while place < len(text):
        found = TOKENS.match(text, place)
        if found is None or len(stack) > TERMS:
            return None
        place = found.end()
        call, mark, number, quoted, option, symbol, star = found.groups()
        if call:
            stack.append((call, []))
        elif mark == ")":
            if len(stack) < 2:
                return None
            value = combined(*stack.pop())
            if value is None or len(value) > TERMS:
                return None
            stack[-1][1].append(value)
        elif number:
            stack[-1][1].append({(): int(number[:19])})
        elif quoted or symbol:
            stack[-1][1].append({((quoted or symbol).strip("'"),): 1})
        elif star and len(stack) == 1:
            stack[0] = ("Mul", stack[0][1])
        elif not option and not mark:
            return None
    return combined(*stack[0]) if len(stack) == 1 and stack[0][1] else None


def combined(function: str, values: list[Polynomial]) -> Polynomial | None:
    """Computes a call of a function, such as Add or Mul, in an expression of symbolic sizes, on polynomials,
    `values`; None for an unknown function, or too many terms.
    """
    if function in ("Integer", "Symbol") and len(values) == 1:
        return values[0]
    if function not in ("Add", "Mul"):
        return None
    total: Polynomial = {(): 1} if function == "Mul" else {}
    for value in values:
        if function == "Add":
            total = summed([*total.items(), *value.items()])
        else:
            terms = [
                (tuple(sorted(a + b)), count * other)
                for a, count in total.items()
                for b, other in value.items()
            ]
            total = summed(terms)
        if len(total) > TERMS:
            return None
    return total


def summed(terms: list[tuple[tuple[str, ...], int]]) -> Polynomial:
    """Adds the factors of equal products of symbols in a polynomial of sizes; leaves out sums of 0."""
    total: Polynomial = {}
    for symbols, count in terms:
        total[symbols] = total.get(symbols, 0) + count
    return {symbols: count for symbols, count in total.items() if count}


def symbol_of(size: Json) -> str | None:
    """Returns the name of the symbol that a size in JSON is, such as "s15"; None for other sizes."""
    found = polynomial(str(table(size.get("as_expr")).get("expr_str"))[:1000]) if "as_expr" in size else None
    terms = [*(found or {}).items()]
    return terms[0][0][0] if len(terms) == 1 and terms[0][1] == 1 and terms[0][0] else None


# ---- the graph ---------------------------------------------------------------------------------------------


@dataclass
class ExportReader:
    """Reading of the graph of a torch.export program.

    path: the file, for messages. graph: the JSON of the graph. symbols: for each symbol in sizes `SEQUENCES`
    or `STEPS`, by the chosen axes of the inputs.
    values: the node of each value that is read so far, by name; a `SymbolicSize` or a number for numbers.
    """

    path: str
    graph: Json
    symbols: Mapping[str, str]
    values: dict[str, Any] = field(default_factory=dict[str, Any])

    def read(self, arguments: list[str], outputs: list[Any]) -> AtenGraph:
        """Reads the graph of operations of a torch.export program; raises `FileError` for a damaged one.

        arguments: the names of the values that are arguments of the graph: weights, constants and inputs.
        outputs: the outputs of the program, in JSON.
        """
        made = [AtenNode(ARGUMENT, results=(self.tensor(name),)) for name in arguments]
        self.values.update(zip(arguments, made, strict=True))
        for kind in ("sym_int_values", "sym_float_values", "sym_bool_values"):
            for name, value in table(self.graph.get(kind)).items():
                self.values[name] = self.size(table(value))
        written = InPlaceChanges(rows(self.graph.get("nodes")), outputs, {*arguments})
        for place, node in written.needed():
            made += self.node(node, place, written)
        return AtenGraph(tuple(made), tuple(self.argument(output) for output in outputs))

    def node(self, node: Json, place: int, written: "InPlaceChanges") -> Iterator[AtenNode]:
        """Yields the node for the call of an operation in a program of torch.export, and a node for each of
        its results. place: its position in the program. written: which values the program changes in place;
        an operation that does so may be read as one that returns a new value.
        """
        operator, given = written.operator(node, place), rows(node.get("inputs"))
        arguments = {str(each.get("name"))[:100]: self.argument(each.get("arg")) for each in given}
        outputs = rows(node.get("outputs"))
        found = [name for output in outputs for name in self.result_names(output)]
        positions = tuple(str(each.get("name"))[:100] for each in given if each.get("kind") != 2)
        where = printable(f"{title(node)} of {self.path}")
        check_arguments(where, operator, [str(each.get("name"))[:100] for each in given], positions)
        call = AtenNode(
            CALL,
            operator,
            printable(str(node.get("target"))[:200].removeprefix("torch.ops.")),
            {**DEFAULTS.get(operator, {}), **arguments},
            positions,
            tuple(name for name in arguments if name not in positions),
            tuple(self.tensor(name) for name in found),
            common_dtype([arguments[name] for name in positions[:2]]),
            place=where,
        )
        yield call
        if len(found) == len(outputs) == 1 and "as_tensors" not in outputs[0]:
            self.values[found[0]] = call
            return
        for number, name in enumerate(found):
            item = AtenNode(ITEM, value=(call, number), results=(call.results[number],), place=where)
            self.values[name] = item
            yield item

    def result_names(self, output: Json) -> list[str]:
        """Returns the names of the results in one output of an operation: of a tensor, or of all tensors of a
        list. Raises `FileError` for a result that is no tensor.
        """
        if "as_tensors" in output:
            return [str(each.get("name")) for each in rows(output["as_tensors"])]
        name = table(output.get("as_tensor")).get("name")
        if not isinstance(name, str):
            raise FileError(f"an operation has the result {str(output)[:100]!a}, which is no tensor")
        return [name]

    def tensor(self, name: str) -> InferredTensor:
        """Returns the shape and dtype that the file states for a tensor; raises `FileError` if it states
        none, or too large ones.
        """
        meta = table(table(self.graph.get("tensor_values")).get(name))
        sizes = tuple(self.size(size) for size in rows(meta.get("sizes")))
        dtype = DTYPES.get(cast(Any, meta.get("dtype"))) if isinstance(meta.get("dtype"), int) else None
        if not isinstance(meta.get("sizes"), list) or dtype is None:
            raise FileError(f"{name[:100]!a} has no shape and dtype")
        count = 1
        for size in sizes:
            count *= size if isinstance(size, int) else 1
            if (isinstance(size, int) and size < 0) or count > MOST:
                raise FileError(f"{name[:100]!a} has a shape that is negative or of more than {MOST} numbers")
        return InferredTensor(sizes, dtype)

    def size(self, value: Json) -> Any:
        """Reads a size or another number of a torch.export program from JSON: returns the number, or a
        `SymbolicSize` for an expression of symbols, such as "s0 + 1".
        """
        known = next((value[key] for key in ("as_int", "as_float", "as_bool") if key in value), None)
        if known is not None:
            return checked_number(known)
        text = str(table(value.get("as_expr")).get("expr_str"))[:1000]
        found = polynomial(text)
        if found is None:
            return SymbolicSize(printable(text[:100]))
        if not found.keys() - {()}:
            return found.get((), 0)
        used = {symbol for symbols in found for symbol in symbols}
        words = self.symbols
        terms = [
            " x ".join(
                [str(count)] * (count != 1 or not symbols) + [words.get(name, name) for name in symbols]
            )
            for symbols, count in found.items()
        ]
        known_names = used <= words.keys()
        size = linear = None
        (symbols, count), *others = found.items()
        if known_names and not others and len({*symbols}) == len(symbols):
            size = Size(tuple(sorted(words[name] for name in symbols)), count)
        if known_names and len(used) == 1 and all(len(symbols) < 2 for symbols in found):
            (name,) = used
            linear = (found[name,], words[name], found.get((), 0))
        return SymbolicSize(" + ".join(terms), size, linear, of_values=not known_names)

    def argument(self, value: Any) -> Any:
        """Reads an argument of an operation from its JSON, which names its kind: a number, a text, a list, or
        the node of a tensor. Raises `FileError` for arguments of other kinds.
        """
        fields = table(value)
        if len(fields) != 1:
            raise FileError(f"an operation has the argument {str(value)[:100]!a}, which is no value")
        ((kind, inner),) = fields.items()
        if kind not in KINDS:
            raise FileError(f"an operation has an argument of kind {kind[:100]!a}, which is not read")
        return KINDS[kind](self, inner)

    def named(self, value: Any) -> Any:
        """Returns the node of a tensor, or a size, to which an argument in JSON refers; raises `FileError`
        for a tensor that no earlier operation computes.
        """
        fields = table(value)
        if "as_none" in fields:
            return None
        if "as_int" in fields or "as_float" in fields or "as_bool" in fields:
            return self.size(fields)
        name = fields.get("name", fields.get("as_name", table(fields.get("as_tensor")).get("name")))
        if not isinstance(name, str) or name not in self.values:
            raise FileError(f"an operation reads {str(name)[:100]!a}, which is not computed before it")
        return self.values[name]


def check_arguments(where: str, operator: str, given: list[str], positions: tuple[str, ...]) -> None:
    """Raises `FileError` for arguments with names that an operation does not have. where: the node, for
    messages. given: the names of all arguments. positions: the names of arguments given by position.
    """
    entry = EXPORTED.get(operator)
    by_position = isinstance(entry, AtenOperation) and entry.rule is not None
    expected = misplaced(operator, positions) if by_position else ""
    if expected or len({*given}) < len(given):
        raise FileError(
            f"{where} has the arguments {', '.join(given)[:100]!a}" + f", not {expected}" * bool(expected)
        )


def category(dtype: str) -> int:
    """Returns the rank of a dtype's kind: bool, integers, floats, others."""
    return 0 if dtype == "bool" else 1 if "int" in dtype else 2 if "float" in dtype else 3


def common_dtype(operands: list[Any]) -> str:
    """Returns the dtype of the result of an operation on two operands by PyTorch's rules; "" for others.

    The higher of bool, integers and floats wins. Of operands of the same kind, the dtype of a tensor with
    axes is taken before that of one without, and this before the dtype of a number.

    >>> common_dtype([2, 0.5]), common_dtype([True, 2]), common_dtype(["a text", 2])
    ('float32', 'int64', '')
    """
    kinds = list[tuple[int, int, str]]()
    for operand in operands:
        if isinstance(operand, AtenNode) and operand.results:
            tensor = operand.results[0]
            kinds.append((category(tensor.dtype), 3 if tensor.shape else 2, tensor.dtype))
        elif isinstance(operand, bool | int | float | SymbolicSize):
            kind = type(operand).__name__
            dtype = {"bool": "bool", "float": "float32"}.get(kind, "int64")
            kinds.append((category(dtype), 1, dtype))
    if len(kinds) != 2:
        return ""
    highest = max(kind for kind, _, _ in kinds)
    priority = max(rank for kind, rank, _ in kinds if kind == highest)
    return max((dtype for kind, rank, dtype in kinds if (kind, rank) == (highest, priority)), key=widths)


def widths(dtype: str) -> tuple[int, str]:
    """Returns the number of bits of a dtype, which orders dtypes of one kind."""
    digits = re.sub(r"\D", "", dtype)
    return int(digits) if digits else 0, dtype


class InPlaceChanges:
    """Values that a torch.export program changes in place, and whether anything reads the old ones.

    nodes: the nodes of the program in JSON. outputs: its outputs. kept: its arguments, which must not change.
    """

    def __init__(self, nodes: list[Json], outputs: list[Any], kept: set[str]) -> None:
        """Finds, for each value of a torch.export program, the last node that reads it, and the values that
        may share memory with others, as views do. nodes, outputs: of the program, in JSON. kept: the names of
        its arguments, which must not be changed in place.
        """
        self.nodes, self.live = nodes, live_nodes(nodes, outputs)
        self.last, self.shared = dict[str, int](), {*kept}
        for place, node in enumerate(nodes):
            read = [*names([each.get("arg") for each in rows(node.get("inputs"))])]
            self.last.update(dict.fromkeys(read, place))
            if VIEWS.match(operator_of(node)):
                self.shared.update(read, names(node.get("outputs")))
        self.last.update(dict.fromkeys(names(outputs), len(nodes)))

    def needed(self) -> Iterator[tuple[int, Json]]:
        """Yields (place, node) for the nodes of a torch.export program that must be read. These are nodes on
        which its outputs depend; and, so that they are reported as unsupported, nodes that change an operand
        in place or are no ATen operations. Checks of sizes, and other nodes that no output needs, are left
        out.
        """
        for place, (node, live) in enumerate(zip(self.nodes, self.live, strict=True)):
            operator = self.operator(node, place)
            changes = not str(node.get("target")).startswith(ATEN) or WRITES.match(operator)
            if not CHECKS.match(operator_of(node)) and (live or changes or EFFECTS.match(operator)):
                yield place, node

    def operator(self, node: Json, place: int) -> str:
        """Returns the name of a node's operator in the table of operations. An operator that changes its
        first operand in place, such as relu_, is read as the one that returns a new value, relu, if nothing
        else reads the operand later. place: the position of the node in the program.
        """
        target, operator = str(node.get("target"))[:200], operator_of(node)
        changed = WRITES.match(operator)
        if not target.startswith(ATEN) or changed is None:
            return operator if target.startswith(ATEN) else target
        operand = next(iter(names([each.get("arg") for each in rows(node.get("inputs"))[:1]])), "")
        is_plain = operand not in self.shared and self.last.get(operand, -1) <= place
        return f"{changed[1]}{operator[changed.end() - 1 :]}" if is_plain else operator


def checked_number(value: Any) -> Any:
    """Returns a number of JSON; raises `FileError` for an integer beyond 64 bits, and for other values."""
    if isinstance(value, str) and value in ("Infinity", "-Infinity", "NaN"):
        return float(value)
    if not isinstance(value, int | float) or (isinstance(value, int) and abs(value) >= 1 << 63):
        raise FileError(f"it has {str(value)[:100]!a} where a number should be")
    return value


def checked_list(read: Callable[[Any], Any]) -> Callable[[ExportReader, Any], list[Any]]:
    """Makes the reader of an argument that is a list. read: reads an entry."""
    return lambda reader, value: [read(each) for each in checked_entries(value)]


def checked_entries(value: Any) -> list[Any]:
    """Returns a list of JSON; raises `FileError` for any other value."""
    if not isinstance(value, list):
        raise FileError(f"it has {str(value)[:100]!a} where a list should be")
    return cast("list[Any]", value)


def checked_text(value: Any) -> str:
    """Returns a text of JSON; raises `FileError` for any other value, and for a long one."""
    if not isinstance(value, str) or len(value) > 100:
        raise FileError(f"it has {str(value)[:100]!a} where a short text should be")
    return value


KINDS: Mapping[str, Callable[[ExportReader, Any], Any]] = {
    **dict.fromkeys(("as_none", "as_memory_format", "as_layout", "as_device"), lambda reader, value: None),
    **dict.fromkeys(
        ("as_tensor", "as_sym_int", "as_sym_float", "as_sym_bool", "as_optional_tensor"), ExportReader.named
    ),
    **dict.fromkeys(
        ("as_tensors", "as_sym_ints", "as_sym_floats", "as_sym_bools", "as_optional_tensors"),
        lambda reader, value: [reader.named(each) for each in checked_entries(value)],
    ),
    **dict.fromkeys(("as_int", "as_float", "as_bool"), lambda reader, value: checked_number(value)),
    **dict.fromkeys(("as_ints", "as_floats", "as_bools"), checked_list(checked_number)),
    "as_string": lambda reader, value: checked_text(value),
    "as_scalar_type": lambda reader, value: DTYPES.get(value) if isinstance(value, int) else None,
}
"""The reader of each kind of argument in JSON."""
