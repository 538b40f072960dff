"""The normal form of functions: equal values become the same atom, however they are written.

    sigmoid(-a)                       ->   1 - sigmoid(a)
    tanh(a), -tanh(-a)                ->   2 sigmoid(2 a) - 1
    1 / (1 + exp(-a))                 ->   sigmoid(a)
    0.5 * (1 + tanh(0.5 * a))         ->   sigmoid(a)          by the second line
    where(a > 0, a, 0), maximum(a, 0) ->   relu(a)
    where(c, a, b)                    ->   c a + (1 - c) b     c is 0 or 1, so that c c = c

The activations that a known cell may have are those of `layout.equations`. Each way to write one is a row of
`SPELLINGS`. It is traced once, with a placeholder for its argument, and brought into this normal form. A
value is the activation if it equals this form for the argument found in its innermost function.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from functools import lru_cache
from typing import Any

import numpy as np

from stepnet.compiler.net.ir import Builder, Net, Pairs
from stepnet.compiler.net.types import ROWS, Type
from stepnet.compiler.plan.recognise.polynomial import (
    LARGEST,
    ONE,
    Atom,
    DifferentError,
    Function,
    Leaf,
    Monomial,
    Polynomial,
    Product,
    functions_in,
)
from stepnet.compiler.trace.traced import Traced
from stepnet.compiler.values.records import dataclass
from stepnet.layout.equations import ACTIVATIONS

# NumPy returns a traced value for a traced value, which its stubs do not know.
numpy: Any = np

# Activations and ways to write them, in groups: a spelling that uses other activations comes in a later
# group. The spellings of `ACTIVATIONS` are stepnet's; sigmoid, tanh and linear need no row for them.
SPELLINGS: tuple[tuple[tuple[str, Callable[[Any], Any]], ...], ...] = (
    (
        ("sigmoid", lambda a: 1 / (1 + numpy.exp(-a))),
        ("relu", ACTIVATIONS["relu"]),
        ("relu", lambda a: numpy.where(a > 0, a, 0)),
        ("relu", lambda a: numpy.where(a >= 0, a, 0)),
        ("relu", lambda a: 0.5 * (a + numpy.abs(a))),
        ("softplus", lambda a: numpy.log(1 + numpy.exp(a))),
        ("softsign", ACTIVATIONS["softsign"]),
        ("gelu", ACTIVATIONS["gelu"]),
    ),
    (
        ("sigmoid", lambda a: numpy.exp(a) / (1 + numpy.exp(a))),
        ("tanh", lambda a: (1 - numpy.exp(-2 * a)) / (1 + numpy.exp(-2 * a))),
        ("tanh", lambda a: (numpy.exp(2 * a) - 1) / (numpy.exp(2 * a) + 1)),
        ("tanh", lambda a: (numpy.exp(a) - numpy.exp(-a)) / (numpy.exp(a) + numpy.exp(-a))),
        ("hard_sigmoid", ACTIVATIONS["hard_sigmoid"]),
        ("hard_sigmoid", lambda a: numpy.clip(a + 3, 0, 6) / 6),
        ("hard_sigmoid_fifth", ACTIVATIONS["hard_sigmoid_fifth"]),
        ("elu", ACTIVATIONS["elu"]),
        ("elu", lambda a: numpy.where(a > 0, a, numpy.exp(a) - 1)),
        ("selu", ACTIVATIONS["selu"]),
        ("softplus", ACTIVATIONS["softplus"]),
        ("silu", ACTIVATIONS["silu"]),
    ),
)
EVEN = ("sigmoid", "absolute")
"""Functions whose argument is normalised to one sign, because f(-a) follows from f(a)."""
SWAPPED = {"less": "greater", "less_equal": "greater_equal"}
COMMUTING = ("minimum", "maximum", "equal", "not_equal", "logical_and", "logical_or", "logical_xor")
CONDITIONS = {
    *SWAPPED.values(),
    "equal",
    "not_equal",
    "logical_and",
    "logical_or",
    "logical_xor",
    "logical_not",
}
RECIPROCAL, SIGMOID = "reciprocal", "sigmoid"


@dataclass(frozen=True)
class Rule:
    """Spelling of an activation in normal form, with the facts needed to find its argument in a value.

    activation: the name of the activation.
    net: the traced spelling.
    anchor, slope, shift: the function whose first operand is slope * argument + shift.
    names: the functions in its terms.
    is_single: whether it is a single function times a coefficient, `factor`.
    multiplies: whether the argument is also a factor, so that there is a term for each of the argument's
        terms.
    before: the number of rules of earlier groups.
    """

    activation: str
    net: Net
    anchor: str
    slope: float
    shift: float
    names: frozenset[str]
    is_single: bool
    factor: float
    multiplies: bool
    before: int

    def may_be(self, names: frozenset[str]) -> bool:
        """Tells whether a value (a polynomial) may be this rule's activation, written out as the rule spells
        it: a quick test, before the two are compared.

        names: the names of the functions in the value's terms. They have to be those of the rule; if the
            activation multiplies its argument, the argument may bring others.
        """
        return self.names <= names if self.multiplies else self.names == names

    def arguments(self, value: Polynomial) -> Iterator[Polynomial]:
        """Yields polynomials x that are candidates for the argument, if `value` may be activation(x). For
        each function called `anchor` in `value`, x solves slope * x + shift = its operand. For sigmoid and
        absolute, whose operand may have its sign changed, also the x with minus the operand is yielded.
        """
        most = len(value.terms) if self.multiplies else LARGEST
        for function in functions_in(value, ACTIVATIONS):
            if function.name == self.anchor and len(function.operands[0].terms) <= most:
                argument = (function.operands[0] - Polynomial.number(self.shift)).scaled(1 / self.slope)
                yield argument
                if self.anchor in EVEN:
                    yield -(function.operands[0] + Polynomial.number(self.shift)).scaled(1 / self.slope)


@dataclass(frozen=True)
class Algebra:
    """Arithmetic of polynomials in normal form: equal values compare equal, as each atom (factor) is made
    once.

    rules: the spellings to be replaced by activations.
    atoms: the atoms made so far.
    """

    rules: tuple[Rule, ...]
    atoms: dict[Leaf | Product | Function, Atom] = field(default_factory=dict[Any, Atom])

    def atom(self, content: Leaf | Product | Function) -> Polynomial:
        """Returns the polynomial that is one atom, the factor that stands for this leaf (features of an
        input), product or function. Equal ones get the same atom, so that equal polynomials compare equal.
        """
        atom = self.atoms.get(content)
        if atom is None:
            atom = self.atoms[content] = Atom(
                len(self.atoms),
                content,
                is_fixed(content),
                isinstance(content, Function) and content.name in CONDITIONS,
            )
        return Polynomial.atom(atom)

    def applied(self, operation: str, operands: Sequence[Polynomial], pairs: Pairs = ()) -> Polynomial:
        """Applies a pointwise operation to polynomials; returns the result in normal form, to be compared.

        pairs: the attributes of the operation.
        """
        rule = ARITHMETIC.get(operation)
        rewritten = (
            self.function(operation, operands, pairs) if rule is None else rule(self, operands, dict(pairs))
        )
        return self.collapsed(rewritten, False)

    def function(self, name: str, operands: Sequence[Polynomial], pairs: Pairs = ()) -> Polynomial:
        """Applies a function other than arithmetic to polynomials, in normal form: tanh by sigmoid, expm1 by
        exp, log1p by log, sigmoid and absolute of an argument whose last coefficient is positive, and bounds
        with the minimum outside.

        pairs: the attributes of the function.
        """
        name, operands = ordered(name, operands)
        if name == "tanh":
            return self.activation("tanh", operands[0])
        if name == "expm1":
            return self.function("exp", operands) - ONE
        if name == "log1p":
            return self.function("log", [operands[0] + ONE])
        if name in EVEN and operands[0].terms and operands[0].terms[-1][1] < 0:
            other = self.function(name, [-operands[0]], pairs)
            return ONE - other if name == SIGMOID else other
        if (inner := lower_bound_inside(name, operands)) is not None:
            below = self.function("maximum", [inner[0], operands[1]])
            return self.function("minimum", [below, inner[1]])
        return self.collapsed(self.atom(Function(name, tuple(operands), pairs)), True)

    def activation(self, name: str, argument: Polynomial) -> Polynomial:
        """Applies an activation, such as "sigmoid" or "linear", to a polynomial; returns the result in normal
        form, to be compared with values of a step.
        """
        match name:
            case "linear":
                return argument
            case "sigmoid":
                return self.function(SIGMOID, [argument])
            case "tanh":
                return self.function(SIGMOID, [argument.scaled(2)]).scaled(2) - ONE
            case _:
                return self.atom(Function(name, (argument,)))

    def collapsed(self, value: Polynomial, single: bool) -> Polynomial:
        """Replaces a value that is one of the known ways to write an activation (a spelling) by the
        activation; returns any other value unchanged.

        If several activations match, the one with the simplest coefficients is chosen, as
        hard_sigmoid_fifth(a) before hard_sigmoid(1.2 a).

        single: whether to try the spellings that are a single function; else the spellings that are sums and
        products.
        """
        names = names_in(value)
        best: tuple[int, Rule, Polynomial] | None = None
        for rule in self.rules:
            if rule.is_single != single or not rule.may_be(names):
                continue
            before = replace(self, rules=self.rules[: rule.before])
            scaled = value.scaled(rule.factor)
            for argument in rule.arguments(value):
                if before.spelled(rule.net, argument) == scaled:
                    measure = unevenness(argument)
                    best = (measure, rule, argument) if best is None or measure < best[0] else best
        if best is None:
            return value
        return self.activation(best[1].activation, best[2]).scaled(1 / best[1].factor)

    def spelled(self, net: Net, argument: Polynomial) -> Polynomial:
        """Applies an activation, as it is written in one particular way, to a polynomial; returns the result
        in normal form. net: this spelling, with the argument as its input.
        """
        values: list[Polynomial] = []
        for node in net.nodes:
            if node.operation == "input":
                values.append(argument)
            elif node.operation == "constant":
                values.append(Polynomial.number(float(node.attributes["value"].value)))
            else:
                values.append(self.applied(node.operation, [values[n] for n in node.inputs], node.pairs))
        return values[net.results[0]]


def is_fixed(content: Leaf | Product | Function) -> bool:
    """Tells whether a factor of a term (a leaf, product or function) depends on parameters only."""
    if isinstance(content, Leaf):
        return content.kind == "parameter"
    if isinstance(content, Product):
        return all(atom.fixed for atom in content.left)
    return all(operand.fixed for operand in content.operands)


def unevenness(argument: Polynomial) -> int:
    """Counts coefficients that are no powers of two: of matching activations the least uneven wins."""
    return sum(abs(math.frexp(factor)[0]) != 0.5 for monomial, factor in argument.terms if monomial)


def names_in(value: Polynomial) -> frozenset[str]:
    """Returns the names of the functions in a value's terms, but not in the functions' operands."""
    return frozenset(function.name for atom in value.atoms() if (function := atom.function))


def ordered(name: str, operands: Sequence[Polynomial]) -> tuple[str, Sequence[Polynomial]]:
    """Puts the operands of commutative functions and comparisons in a normal order, numbers last, so that
    equal functions are equal. Returns the name and the operands.
    """
    if name in SWAPPED:
        return SWAPPED[name], operands[::-1]
    if name in COMMUTING and operands[0].constant is not None:
        return name, operands[::-1]
    return name, operands


def lower_bound_inside(name: str, operands: Sequence[Polynomial]) -> tuple[Polynomial, Polynomial] | None:
    """Returns a and hi of maximum(minimum(a, hi), lo) with lo <= hi, to be rewritten with the minimum
    outside; None for other functions.
    """
    if name != "maximum" or (low := operands[1].constant) is None or (single := operands[0].single) is None:
        return None
    function = single[0].function
    if single[1] != 1 or function is None or function.name != "minimum":
        return None
    high = function.operands[1].constant
    return None if high is None or low > high else (function.operands[0], function.operands[1])


# ---- arithmetic --------------------------------------------------------------------------------------------

Arithmetic = Callable[[Algebra, Sequence[Polynomial], Mapping[str, Any]], Polynomial]


def reciprocal(algebra: Algebra, value: Polynomial) -> Polynomial:
    """Computes 1 / value as a polynomial: a number, or the function "reciprocal" of the value; raises
    `DifferentError` for zero. algebra: makes polynomials.
    """
    if (number := value.constant) is not None:
        if number == 0:
            raise DifferentError("it divides by zero")
        return Polynomial.number(1 / number)
    return algebra.function(RECIPROCAL, [value])


def chosen(condition: Polynomial, yes: Polynomial, no: Polynomial) -> Polynomial:
    """Computes where(condition, yes, no) as no + condition (yes - no); the condition is 0 or 1."""
    return no + condition * (yes - no)


def power(algebra: Algebra, operands: Sequence[Polynomial], attributes: Mapping[str, Any]) -> Polynomial:
    """Raises a polynomial to the constant power in the attribute `exponent`: by products or a quotient for
    -1, 1, 2 and 3, else as a function. algebra: makes polynomials.
    """
    exponent = float(attributes["exponent"])
    if exponent not in (-1, 1, 2, 3):
        return algebra.function("power", operands, (("exponent", exponent),))
    if exponent < 0:
        return reciprocal(algebra, operands[0])
    value = operands[0]
    for _ in range(int(exponent) - 1):
        value = value * operands[0]
    return value


ARITHMETIC: dict[str, Arithmetic] = {
    "add": lambda algebra, operands, attributes: operands[0] + operands[1],
    "subtract": lambda algebra, operands, attributes: operands[0] - operands[1],
    "multiply": lambda algebra, operands, attributes: operands[0] * operands[1],
    "negative": lambda algebra, operands, attributes: -operands[0],
    "divide": lambda algebra, operands, attributes: operands[0] * reciprocal(algebra, operands[1]),
    "power": power,
    "where": lambda algebra, operands, attributes: chosen(*operands),
}


# ---- the rules of the table --------------------------------------------------------------------------------

HOLE = Leaf("hole", 0, b"")


@lru_cache
def rules(dtype: str) -> tuple[Rule, ...]:
    """Makes the rules that find activations in values from `SPELLINGS`, the ways to write each, with
    constants rounded to `dtype`, the dtype of the examined step. Cached.
    """
    all_rules: list[Rule] = []
    for group in SPELLINGS:
        before = tuple(all_rules)
        all_rules += [rule_of(name, traced(spelling, dtype), before) for name, spelling in group]
    return tuple(all_rules)


def traced(spelling: Callable[[Any], Any], dtype: str) -> Net:
    """Traces a spelling of an activation, such as 1 / (1 + exp(-a)), for an argument of this dtype."""
    builder = Builder()
    argument = Traced(builder, builder.input(Type(ROWS, (), dtype), "a"))
    return builder.net([spelling(argument).number])


def rule_of(name: str, net: Net, earlier_rules: tuple[Rule, ...]) -> Rule:
    """Makes the rule that finds an activation in values that are written in one particular way, a spelling
    such as 1 / (1 + exp(-a)).

    name: the name of the activation.
    net: the spelling as a net, whose input is the argument of the activation.
    earlier_rules: the rules made before, which also apply to parts of this spelling.

    The rule finds the argument by a function of the spelling whose operand is linear in the argument. Raises
    `AssertionError` for a spelling without one.
    """
    algebra = Algebra(earlier_rules)
    hole = algebra.atom(HOLE)
    value = algebra.spelled(net, hole)
    monomial: Monomial = hole.terms[0][0]
    linear = {(), monomial}
    for function in functions_in(value, ()):
        terms = dict(function.operands[0].terms)
        if monomial in terms and linear.issuperset(terms):
            single = value.single
            return Rule(
                name,
                net,
                function.name,
                terms[monomial],
                terms.get((), 0.0),
                names_in(value),
                single is not None,
                1.0 if single is None else single[1],
                monomial[0] in value.atoms(),
                len(earlier_rules),
            )
    raise AssertionError(f"{name} is written without a function of its argument")
