"""The table of known cells, and how each is matched with the polynomials of a step.

    rnn    h' = n                        n = act(x W + h R + b)
    gru    h' = z h + (1 - z) n          n = act(x W + b + r (h R + d)),  or  act(x W + b + (r h) R)
           h' = (1 - z) h + z n
    mgu    the same with r = z
    lstm   c' = f c + i g,  h' = o act(c'),  or  (o act(c')) P

A polynomial is divided by each gate that occurs in it, and quotient and remainder must be what the equations
say. So a match is a proof: the polynomials are equal, not merely similar.
"""

from collections.abc import Callable, Iterator

from stepnet.compiler.plan.recognise.functions import Algebra
from stepnet.compiler.plan.recognise.gates import (
    Gate,
    Sum,
    activation_of,
    gates_in,
    gates_in_products,
    of_products,
    sum_of,
    unclipped,
)
from stepnet.compiler.plan.recognise.polynomial import (
    ONE,
    ZERO,
    DifferentError,
    Leaf,
    Matrix,
    Polynomial,
    Product,
)
from stepnet.compiler.values.records import dataclass
from stepnet.layout.semantics import GATES, Semantics

NAMES = {
    "r": "reset gate r",
    "z": "update gate z",
    "n": "candidate n",
    "i": "input gate i",
    "f": "forget gate f",
    "g": "candidate g",
    "o": "output gate o",
}


@dataclass(frozen=True)
class BodyMemory:
    """Memory of a body, as recognition sees it.

    leaf: the memory before the step, as an input of the body.
    before, after: its values before and after the step, as polynomials.
    """

    leaf: Leaf
    before: Polynomial
    after: Polynomial


@dataclass(frozen=True)
class CellMatch:
    """Known cell that matches the values of a body.

    semantics: the function of the cell.
    gates: for each gate, the argument of its activation.
    projection: the coefficient and the matrix of the projection of an LSTM's output; None if there is none.
    """

    semantics: Semantics
    gates: dict[str, Sum]
    projection: tuple[float, Matrix] | None = None


def match_rnn(algebra: Algebra, h: BodyMemory) -> CellMatch:
    """Matches a simple recurrence, h' = act(x W + h R + b); raises `DifferentError`, with the reason, for any
    other. algebra: not used here. h: the memory and its next value, as polynomials.
    """
    activation, argument = activation_of(h.after)
    try:
        candidate = sum_of(argument, NAMES["n"], h.leaf)
    except DifferentError as different:
        # With the activation "linear" every value matches, so a failure to be a sum of products says little.
        raise DifferentError(different.reason, 0 if activation == "linear" else different.depth) from None
    if not candidate.h:
        raise DifferentError("its memory h is not multiplied by a matrix", 1)
    return match_of("rnn", {"n": candidate}, candidate_activation=activation)


def match_gru(algebra: Algebra, h: BodyMemory) -> CellMatch:
    """Matches a gated recurrent unit or minimal gated unit; raises `DifferentError`, with the reason, for
    anything else. algebra: makes polynomials. h: the memory and its next value, as polynomials.
    """
    reason = DifferentError("its next memory is not z h + (1 - z) n, for any gate z", 1)
    for z, update, n in updates(h):
        activation, argument = activation_of(n)
        clip, inner = unclipped(argument)
        for r, reset, outside, within in resets(algebra, inner):
            try:
                candidate = candidate_of(clip, reset, outside, within, h.leaf)
                if r.activation != z.activation:
                    raise DifferentError(
                        f"the gates r and z have different activations, {r.activation} and {z.activation}", 3
                    )
                gates = {
                    name: sum_of(gate.argument, NAMES[name], h.leaf) for name, gate in (("r", r), ("z", z))
                }
                functions = {"gate_activation": z.activation, "candidate_activation": activation}
                if r.value == z.value:
                    only = {"f": gates["z"], "n": candidate}
                    return match_of("mgu", only, reset=reset, update=update, **functions)
                return match_of("gru", gates | {"n": candidate}, reset=reset, update=update, **functions)
            except DifferentError as different:
                reason = max(reason, different, key=lambda mismatch: mismatch.depth)
        if reason.depth < 2:
            reason = DifferentError("the candidate n has no reset gate", 2)
    raise reason


def updates(h: BodyMemory) -> Iterator[tuple[Gate, str, Polynomial]]:
    """Yields each way to write h' = z h + (1 - z) n or its reverse: gate z, update ("keep" or "write" for the
    role of z), and candidate n. h: the memory and its next value, as polynomials of the step's inputs.
    """
    for z in gates_in(h.after):
        quotient = z.divided(h.after)
        if quotient is None:
            continue
        without_gate, by_gate = quotient
        if without_gate == h.before:
            yield z, "write", by_gate + h.before
        elif by_gate == h.before - without_gate:
            yield z, "keep", without_gate


def resets(algebra: Algebra, argument: Polynomial) -> Iterator[tuple[Gate, str, Polynomial, Polynomial]]:
    """Yields each way to write the argument of a candidate with a reset gate r: as the gate, the reset
    ("before" or "after" the product with a matrix), and the terms outside and inside the product with r.
    algebra: makes polynomials.
    """
    for r in gates_in(argument):
        quotient = r.divided(argument)
        if quotient is not None:
            yield r, "after", *quotient
    for r in gates_in_products(argument):
        yield r, "before", *of_products(algebra, argument, r)


def candidate_of(clip: float, reset: str, outside: Polynomial, within: Polynomial, h: Leaf) -> Sum:
    """Reads the argument of a GRU's candidate as products and biases; raises `DifferentError` for others.

    clip: the bound that the argument is clipped to; 0 for none. reset: whether the gate multiplies "before"
        or "after" the matrix.
    outside, within: the terms outside and inside the product with the reset gate. h: the memory.
    """
    out, inner = sum_of(outside, NAMES["n"], h), sum_of(within, NAMES["n"], h)
    if out.h or inner.x or out.clip or inner.clip:
        raise DifferentError("the reset gate r does not multiply the memory's product alone", 2)
    if not inner.h or (reset == "before" and inner.bias.terms):
        raise DifferentError("the reset gate r does not multiply the memory", 2)
    return Sum(clip, out.x, inner.h, out.bias, inner.bias)


def match_lstm(algebra: Algebra, h: BodyMemory, c: BodyMemory) -> CellMatch:
    """Matches a long short-term memory with output h and cell c; raises `DifferentError`, with the reason,
    for others. algebra: makes polynomials. h, c: both memories and their next values, as polynomials.
    """
    projection_clip, output = unclipped(h.after)
    projection, output = unprojected(output)
    o, output_activation = output_gate(output, c.after)
    cell_clip, cell = unclipped(c.after)
    f, rest = forget_gate(cell, c)
    i, g = input_gate(f, rest)
    if len({gate.activation for gate in (i, f, o)}) > 1:
        raise DifferentError(
            f"the gates i, f, o have different activations, {i.activation}, {f.activation}, {o.activation}", 3
        )
    candidate_activation, argument = activation_of(g)
    coupled = i.value == ONE - f.value
    sums = {
        "f": sum_of(f.argument, NAMES["f"], h.leaf, c.before),
        "g": sum_of(argument, NAMES["g"], h.leaf),
        "o": sum_of(o.argument, NAMES["o"], h.leaf, c.after),
    }
    sums["i"] = sums["f"].negated() if coupled else sum_of(i.argument, NAMES["i"], h.leaf, c.before)
    match = match_of(
        "lstm",
        sums,
        coupled=coupled,
        gate_activation=f.activation,
        candidate_activation=candidate_activation,
        output_activation=output_activation,
        cell_clip=cell_clip,
        projection_clip=projection_clip,
    )
    if projection is None and projection_clip:
        raise DifferentError("its output is clipped but not projected", 3)
    return CellMatch(match.semantics, match.gates, projection)


def unprojected(output: Polynomial) -> tuple[tuple[float, Matrix] | None, Polynomial]:
    """Splits the output of an LSTM into its projection, as coefficient and matrix (None without one), and the
    output before the projection.
    """
    products = [monomial[0].what for monomial, _ in output.terms if len(monomial) == 1]
    matrices = {product.matrix for product in products if isinstance(product, Product)}
    if len(matrices) != 1 or len(products) != len(output.terms):
        return None, output
    total = ZERO
    for monomial, factor in output.terms:
        product = monomial[0].what
        if not isinstance(product, Product):
            return None, output
        total = total + Polynomial.of({product.left: factor})
    return (1.0, matrices.pop()), total


def output_gate(output: Polynomial, cell: Polynomial) -> tuple[Gate, str]:
    """Returns the gate o and the activation in output = o activation(cell), for an LSTM's output and cell;
    raises `DifferentError` if there is no gate o.
    """
    for o in gates_in(output):
        quotient = o.divided(output)
        if quotient is not None and not quotient[0].terms:
            if quotient[1] == cell:
                return o, "linear"
            activation, argument = activation_of(quotient[1])
            if argument == cell:
                return o, activation
    raise DifferentError("no memory is o activation(c'), for a gate o and the other memory c'", 1)


def forget_gate(cell: Polynomial, c: BodyMemory) -> tuple[Gate, Polynomial]:
    """Returns the gate f and the rest in cell = f c + rest of an LSTM; raises `DifferentError` without f."""
    quotient = cell.divided(c.before.terms[0][0][0])
    if quotient is None or not quotient[1].terms:
        raise DifferentError("the cell c' has no term f c", 2)
    rest, factor = quotient
    for f in gates_in(factor):
        if f.value == factor:
            return f, rest
    raise DifferentError("the old cell c is not multiplied by one forget gate f", 2)


def input_gate(f: Gate, rest: Polynomial) -> tuple[Gate, Polynomial]:
    """Returns the gate i and candidate g in rest = i g of an LSTM; raises `DifferentError` if there is no
    such gate with the activation of the forget gate f.
    """
    for i in gates_in(rest):
        quotient = i.divided(rest)
        if quotient is not None and not quotient[0].terms and i.activation == f.activation:
            return i, quotient[1]
    raise DifferentError("what is added to the cell is not i g, for a gate i like the forget gate", 2)


def match_of(cell: str, gates: dict[str, Sum], **semantics: object) -> CellMatch:
    """Makes the match of a known cell: its gates' arguments in the order of its arrays, and its semantics.

    semantics: its semantics (the choices in the cell's formulas, such as activations), without the clip of
        the gates. Raises `DifferentError` if gates are clipped differently, or clipped in a minimal gated
        unit.
    """
    clips = {gate.clip for gate in gates.values()}
    if len(clips) > 1:
        raise DifferentError("its gates are clipped to different bounds", 3)
    bound = clips.pop()
    if bound:
        if cell == "mgu":
            raise DifferentError("it is a minimal gated unit with clipped gates", 3)
        semantics["clip"] = bound
    ordered = {name: gates[name] for name in GATES[cell]}
    return CellMatch(Semantics(cell, **semantics), ordered)  # type: ignore[arg-type]


@dataclass(frozen=True)
class KnownCell:
    """Row of the table of known cells, by which a recurrence is recognised.

    cell: the name of the cell.
    memories: the names of its memories, in order.
    found: the function that matches it; raises `DifferentError`.
    """

    cell: str
    memories: str
    found: Callable[..., CellMatch]


KNOWN = (
    KnownCell("rnn", "h", match_rnn),
    KnownCell("gru", "h", match_gru),
    KnownCell("lstm", "hc", match_lstm),
)
