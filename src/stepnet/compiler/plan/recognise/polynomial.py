"""Polynomials: sums of products of atoms, with numeric coefficients. They are the normal form of a step's
values.

    z * h + (1 - z) * n   ->   h z + n - n z

A polynomial stands for a vector with one number per unit, and so does an atom. Equal atoms are the same
object (`functions.py`), so polynomials are equal exactly if their terms are.
"""

from collections.abc import Container, Mapping

import numpy as np

from stepnet.compiler.net.ir import Pairs
from stepnet.compiler.values.records import dataclass
from stepnet.errors import StepnetError

LARGEST = 1024
"""The largest number of terms of a polynomial."""


ROUNDING = 4 * 2.0**-52
"""The relative rounding error of a coefficient, which is a product of few constants of the body."""


class DifferentError(StepnetError):
    """Raised with the reason why a value is not one that a known cell computes.

    depth: how far the match had come; the deepest reason is reported.
    """

    def __init__(self, reason: str, depth: int = 0) -> None:
        """Makes the error that says why a recurrence is not recognised. depth: how far the match had come."""
        super().__init__(reason)
        self.reason, self.depth = reason, depth


@dataclass(frozen=True)
class Leaf:
    """Features of one input of the body, as a factor (atom) of polynomials.

    kind: "memory", "sequence", "static" or "parameter"; the last also for constants computed from parameters.
    number: the node of the input or constant.
    data: the flat indices of the features in it, as bytes.
    """

    kind: str
    number: int
    data: bytes

    @property
    def indices(self) -> np.ndarray:
        """The flat indices, in an input or constant, of the features for which this factor stands."""
        return np.frombuffer(self.data, np.int64)


@dataclass(frozen=True)
class Matrix:
    """Matrix of elements of a constant: the element at i, j has the flat index rows[i] + columns[j] there."""

    number: int
    row_data: bytes
    column_data: bytes

    @property
    def rows(self) -> np.ndarray:
        """One number for each row of a matrix that is picked from a constant: its element at i, j is that of
        the constant at the flat index rows[i] + columns[j].
        """
        return np.frombuffer(self.row_data, np.int64)

    @property
    def columns(self) -> np.ndarray:
        """One number for each column of a matrix that is picked from a constant: its element at i, j is that
        of the constant at the flat index rows[i] + columns[j].
        """
        return np.frombuffer(self.column_data, np.int64)


@dataclass(frozen=True)
class Product:
    """Product of a vector, itself the product of the atoms (factors) `left`, with a matrix."""

    left: "Monomial"
    matrix: Matrix


@dataclass(frozen=True)
class Function:
    """Function of polynomials: an operation of the table, or an activation by its name. It is a factor."""

    name: str
    operands: tuple["Polynomial", ...]
    pairs: Pairs = ()


@dataclass(frozen=True, eq=False)
class Atom:
    """Factor of a term of a polynomial; equal factors are one object.

    number: its rank in the order of factors.
    what: the leaf, product or function that it stands for.
    fixed: whether it depends on parameters only.
    condition: whether its values are 0 or 1.
    """

    number: int
    what: Leaf | Product | Function
    fixed: bool
    condition: bool

    @property
    def function(self) -> Function | None:
        """The function that the atom (a factor) is a value of; None for other atoms."""
        return self.what if isinstance(self.what, Function) else None


Monomial = tuple[Atom, ...]
"""The factors of a term, in order; none for the number 1."""


def sum_of_factors(first: float, other: float) -> float:
    """Adds two coefficients; returns 0 if only rounding error is left."""
    total = first + other
    return 0.0 if abs(total) <= ROUNDING * abs(first) else total


def rounded_to_integer(factor: float) -> float:
    """Rounds a coefficient to an integer if it is one up to rounding error, such as 0.2 * (1 / 0.2)."""
    near = float(round(factor)) if abs(factor) < LARGEST else 0.0
    return near if near and abs(factor - near) <= ROUNDING * abs(near) else factor


def number_of(atom: Atom) -> int:
    """Returns the rank of an atom (a factor), by which the factors of a term are sorted."""
    return atom.number


def multiplied(first: Monomial, two: Monomial) -> Monomial:
    """Multiplies two monomials (products of factors); a condition c, 0 or 1, occurs once, as c c = c."""
    further = tuple(atom for atom in two if not (atom.condition and atom in first))
    return tuple(sorted((*first, *further), key=number_of))


def without(monomial: Monomial, atom: Atom) -> Monomial:
    """Removes one occurrence of an atom (a factor) from a monomial (a product of atoms)."""
    index = monomial.index(atom)
    return monomial[:index] + monomial[index + 1 :]


@dataclass(frozen=True)
class Polynomial:
    """Polynomial of a body's values, to compare steps: a sum of monomials (products of atoms), each with
    its coefficient, which is not 0, in order.
    """

    terms: tuple[tuple[Monomial, float], ...] = ()

    @classmethod
    def of(cls, terms: Mapping[Monomial, float]) -> "Polynomial":
        """Makes a polynomial from coefficients by monomial (a product of atoms, its factors), without zeros
        and in a normal order; raises `DifferentError` if there are too many.
        """
        if len(terms) > LARGEST:
            raise DifferentError("its next memory has too many terms")
        nonzero = [
            (monomial, rounded_to_integer(factor)) for monomial, factor in terms.items() if factor != 0
        ]
        return cls(tuple(sorted(nonzero, key=lambda term: tuple(atom.number for atom in term[0]))))

    @classmethod
    def number(cls, value: float) -> "Polynomial":
        """Makes the constant polynomial of a number."""
        return cls.of({(): float(value)})

    @classmethod
    def atom(cls, atom: Atom) -> "Polynomial":
        """Makes the polynomial that is one atom, a factor such as an input's features."""
        return cls((((atom,), 1.0),))

    def __add__(self, other: "Polynomial") -> "Polynomial":
        """Adds polynomials; terms that cancel up to rounding are dropped."""
        total = dict(self.terms)
        for monomial, factor in other.terms:
            total[monomial] = sum_of_factors(total.get(monomial, 0.0), factor)
        return Polynomial.of(total)

    def __neg__(self) -> "Polynomial":
        """Negates the polynomial: each coefficient changes its sign."""
        return self.scaled(-1.0)

    def __sub__(self, other: "Polynomial") -> "Polynomial":
        """Subtracts a polynomial from this one."""
        return self + -other

    def __mul__(self, other: "Polynomial") -> "Polynomial":
        """Multiplies polynomials; raises `DifferentError` if there are too many terms."""
        if len(self.terms) * len(other.terms) > LARGEST:
            raise DifferentError("its next memory has too many terms")
        total: dict[Monomial, float] = {}
        for first, factor in self.terms:
            for two, other_factor in other.terms:
                monomial = multiplied(first, two)
                total[monomial] = sum_of_factors(total.get(monomial, 0.0), factor * other_factor)
        return Polynomial.of(total)

    def scaled(self, factor: float) -> "Polynomial":
        """Multiplies all coefficients of the polynomial by a number."""
        if factor == 1:
            return self
        return Polynomial.of({monomial: old * factor for monomial, old in self.terms})

    @property
    def constant(self) -> float | None:
        """The number that the polynomial equals; None if it contains an atom, a value of the step."""
        if not self.terms:
            return 0.0
        return self.terms[0][1] if len(self.terms) == 1 and not self.terms[0][0] else None

    @property
    def fixed(self) -> bool:
        """Tells whether the polynomial depends on parameters only, and so is the same at every step."""
        return all(atom.fixed for monomial, _ in self.terms for atom in monomial)

    @property
    def single(self) -> tuple[Atom, float] | None:
        """The atom (factor) and its coefficient, if the polynomial is one atom times a number; else None."""
        if len(self.terms) == 1 and len(self.terms[0][0]) == 1:
            return self.terms[0][0][0], self.terms[0][1]
        return None

    def atoms(self) -> list[Atom]:
        """Lists the atoms (factors) of all terms of the polynomial, each once, in order."""
        return list(dict.fromkeys(atom for monomial, _ in self.terms for atom in monomial))

    def divided(self, atom: Atom) -> "tuple[Polynomial, Polynomial] | None":
        """Divides the polynomial by an atom: returns (rest, factor) with self = rest + atom * factor; None if
        a power of the atom occurs.
        """
        rest: dict[Monomial, float] = {}
        factor: dict[Monomial, float] = {}
        for monomial, coefficient in self.terms:
            if atom not in monomial:
                rest[monomial] = coefficient
            elif monomial.count(atom) == 1:
                factor[without(monomial, atom)] = coefficient
            else:
                return None
        return Polynomial.of(rest), Polynomial.of(factor)


ONE, ZERO = Polynomial.number(1), Polynomial()


def functions_in(polynomial: Polynomial, stop: Container[str]) -> list[Function]:
    """Lists the functions in a polynomial and in their operands, each once. The operands of functions whose
    name is in `stop` are not searched.
    """
    seen: dict[Atom, Function] = {}
    waiting = [polynomial]
    while waiting:
        for atom in waiting.pop().atoms():
            if (function := atom.function) is not None and atom not in seen:
                seen[atom] = function
                waiting += [] if function.name in stop else function.operands
    return list(seen.values())
