"""The parts of a cell's equations: gates, and the arguments of their activations.

    sigmoid(x @ W + h @ R + b)   ->   the activation; the products of the input and of the memory; the bias

A gate occurs in a polynomial as an atom f, or as 1 - f or 2 f - 1: `Gate` is slope * f + offset.
"""

from collections.abc import Iterator

from stepnet.compiler.plan.recognise.functions import Algebra
from stepnet.compiler.plan.recognise.polynomial import (
    ZERO,
    Atom,
    DifferentError,
    Leaf,
    Matrix,
    Monomial,
    Polynomial,
    Product,
    functions_in,
    without,
)
from stepnet.compiler.values.records import dataclass
from stepnet.layout.semantics import ACTIVATIONS, SYMMETRIC


@dataclass(frozen=True)
class Gate:
    """Gate of a cell, an activation of an argument; its value is the polynomial slope * atom + offset."""

    activation: str
    argument: Polynomial
    atom: Atom
    slope: float
    offset: float

    @property
    def value(self) -> Polynomial:
        """The gate, slope * atom + offset, as a polynomial, to compare it with other values."""
        return Polynomial.atom(self.atom).scaled(self.slope) + Polynomial.number(self.offset)

    def solved(self, rest: Polynomial, factor: Polynomial) -> tuple[Polynomial, Polynomial]:
        """Rewrites rest + atom * factor with a gate in place of its atom (a factor that stands for a function
        value), where gate = slope * atom + offset. Returns a and b such that the value is a + gate * b.
        """
        inner = factor.scaled(1 / self.slope)
        return rest - inner.scaled(self.offset), inner

    def divided(self, value: Polynomial) -> tuple[Polynomial, Polynomial] | None:
        """Returns a and b in value = a + gate * b, to match equations; None if the gate's powers occur."""
        quotient = value.divided(self.atom)
        return None if quotient is None else self.solved(*quotient)


def gates_of(atom: Atom) -> Iterator[Gate]:
    """Yields the gates of known cells that an atom may be part of, such as f, 1 - f and 2 f - 1."""
    function = atom.function
    if function is None or atom.fixed or function.name not in ACTIVATIONS:
        return
    argument = function.operands[0]
    yield Gate(function.name, argument, atom, 1, 0)
    if function.name in SYMMETRIC:
        yield Gate(function.name, -argument, atom, -1, 1)
    if function.name == "sigmoid":
        yield Gate("tanh", argument.scaled(0.5), atom, 2, -1)
        yield Gate("tanh", argument.scaled(-0.5), atom, -2, 1)


def gates_in(value: Polynomial) -> Iterator[Gate]:
    """Yields the gates (activations) that may occur as factors in the terms of a polynomial."""
    for atom in value.atoms():
        yield from gates_of(atom)


def activation_of(value: Polynomial) -> tuple[str, Polynomial]:
    """Returns the name of the activation that a polynomial is, and its argument; ("linear", value) if it is
    no other activation.
    """
    atoms = value.atoms()
    if len(atoms) == 1:
        for gate in gates_of(atoms[0]):
            if gate.value == value:
                return gate.activation, gate.argument
    return "linear", value


def unclipped(value: Polynomial) -> tuple[float, Polynomial]:
    """Returns the bound c and the argument a of a value clip(a, -c, c); 0 and the value for any other."""
    upper = bounded(value, "minimum")
    lower = None if upper is None else bounded(upper[1], "maximum")
    if upper is None or lower is None or upper[0] != -lower[0] or upper[0] <= 0:
        return 0.0, value
    return upper[0], lower[1]


def bounded(value: Polynomial, name: str) -> tuple[float, Polynomial] | None:
    """Returns (number, a) for a value minimum(a, number) or maximum(a, number), as `name` says; else None."""
    single = value.single
    function = None if single is None or single[1] != 1 else single[0].function
    if function is None or function.name != name or (bound := function.operands[1].constant) is None:
        return None
    return bound, function.operands[0]


@dataclass(frozen=True)
class GateTerm:
    """Term of a gate's argument: factor * ((features of a leaf, that is, of an input, * rows) @ matrix)
    * columns. Without a matrix, the features take the place of the product.
    """

    factor: float
    leaf: Leaf
    rows: Monomial
    matrix: Matrix | None
    columns: Monomial


@dataclass(frozen=True)
class Sum:
    """Argument of an activation: a sum of products of the input and of the memory h, and of biases.

    clip: the bound to which the argument is clipped; 0 for none.
    x, h: the terms of the input and of the memory.
    bias: the bias outside the product with the reset gate.
    inside: the bias inside the product with the reset gate.
    peephole: the factor of the memory c.
    """

    clip: float = 0.0
    x: tuple[GateTerm, ...] = ()
    h: tuple[GateTerm, ...] = ()
    bias: Polynomial = ZERO
    inside: Polynomial = ZERO
    peephole: Polynomial = ZERO

    def negated(self) -> "Sum":
        """Returns minus this argument of a gate. As f(-a) = 1 - f(a), this is the argument of 1 - f."""
        x, h = (
            tuple(GateTerm(-t.factor, t.leaf, t.rows, t.matrix, t.columns) for t in terms)
            for terms in (self.x, self.h)
        )
        return Sum(self.clip, x, h, -self.bias, -self.inside, -self.peephole)


def sum_of(value: Polynomial, gate_name: str, h: Leaf, cell: Polynomial = ZERO) -> Sum:
    """Sorts the terms of a gate's argument by what they multiply; raises `DifferentError` for unknown terms.

    gate_name: the name of the gate, for the message.
    h: the memory that is multiplied by matrices.
    cell: the memory read by peepholes, if any.
    """
    clip, value = unclipped(value)
    peephole = peephole_of(value, cell)
    value = value - peephole * cell
    x: list[GateTerm] = []
    own: list[GateTerm] = []
    bias = ZERO
    for monomial, factor in value.terms:
        fixed = tuple(atom for atom in monomial if atom.fixed)
        others = [atom for atom in monomial if not atom.fixed]
        if not others:
            bias = bias + Polynomial(((monomial, factor),))
            continue
        term = term_of(others, factor, fixed)
        if term is None:
            raise DifferentError(
                f"the {gate_name} reads more than products of the input and of the memory", 2
            )
        if term.leaf.kind == "sequence":
            x.append(term)
        elif term.leaf.kind == "memory" and term.leaf.number == h.number and term.matrix is not None:
            own.append(term)
        else:
            raise DifferentError(f"the {gate_name} reads {reading(term)}", 2)
    return Sum(clip, tuple(x), tuple(own), bias, peephole=peephole)


def strange(value: Polynomial) -> set[str]:
    """Returns the names of functions in a value that no known cell has, to say why it is none."""
    names = {function.name for function in functions_in(value, ())}
    return names - {*ACTIVATIONS, "minimum", "maximum"}


def reading(term: GateTerm) -> str:
    """Describes the input that a term of a gate reads, for the message why no known cell is recognised."""
    if term.leaf.kind == "static":
        return "a static, which no known cell has"
    how = "without a matrix" if term.matrix is None else "by a matrix"
    return f"a memory {how}, which no known cell does"


def term_of(others: list[Atom], factor: float, fixed: Monomial) -> GateTerm | None:
    """Makes a term of the sum that a gate's activation function is applied to, from one monomial: a leaf
    (input features), or its product with a matrix; None for anything else.

    others, factor, fixed: the atoms that depend on inputs, the coefficient, and the atoms of parameters.
    """
    if len(others) != 1:
        return None
    what = others[0].what
    if isinstance(what, Leaf):
        return GateTerm(factor, what, (), None, fixed)
    if isinstance(what, Product):
        rows = tuple(atom for atom in what.left if atom.fixed)
        leaves = [atom.what for atom in what.left if not atom.fixed]
        if len(leaves) == 1 and isinstance(leaves[0], Leaf):
            return GateTerm(factor, leaves[0], rows, what.matrix, fixed)
    return None


def peephole_of(value: Polynomial, cell: Polynomial) -> Polynomial:
    """Returns the parameters p for which an argument contains the terms p * cell, an LSTM's peepholes.

    They are found by the last term of `cell`; the terms of p * cell that are missing remain in the rest.
    """
    if not cell.terms:
        return ZERO
    last_monomial, factor = cell.terms[-1]
    total = ZERO
    for monomial, coefficient in value.terms:
        rest: Monomial | None = monomial
        for atom in last_monomial:
            rest = without(rest, atom) if rest is not None and atom in rest else None
        if rest is not None and all(atom.fixed for atom in rest):
            total = total + Polynomial(((rest, coefficient / factor),))
    return total


def of_products(algebra: Algebra, value: Polynomial, gate: Gate) -> tuple[Polynomial, Polynomial]:
    """Takes a gate out of the products with matrices in a value, as r out of x W + (r h) R.

    Returns a and b, here x W and h R: `value` is a + b with the gate as a factor inside each product of b.
    For a gate that is not just its atom, the factor that stands for it in a term (slope * atom + offset),
    `gate.solved` then changes both. algebra: makes polynomials.
    """
    rest: dict[Monomial, float] = dict(value.terms)
    inner = ZERO
    for monomial, factor in value.terms:
        for atom in monomial:
            if isinstance(atom.what, Product) and gate.atom in atom.what.left:
                product = algebra.atom(Product(without(atom.what.left, gate.atom), atom.what.matrix))
                inner = inner + product * Polynomial(((without(monomial, atom), factor),))
                rest.pop(monomial)
                break
    return gate.solved(Polynomial.of(rest), inner)


def gates_in_products(value: Polynomial) -> Iterator[Gate]:
    """Yields the gates that may be factors inside products with matrices in a polynomial, as r in (r h) R."""
    for atom in value.atoms():
        if isinstance(atom.what, Product):
            for inner in atom.what.left:
                yield from gates_of(inner)
