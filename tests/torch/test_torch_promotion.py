"""The dtypes and values of operations number by number: those of PyTorch, for every pair of dtypes and for
numbers beside tensors; and of random expressions of them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from tolerance import assert_close

from stepnet.torch import trace
from stepnet.torch.aten import ATEN
from tests.torch.torch_loop import ragged

Form = Callable[[Any, Any, Any], Any]
DTYPES = (torch.bool, torch.int32, torch.int64, torch.float32, torch.float64)
UNARY = (
    "neg", "abs", "sign", "floor", "ceil", "round", "trunc", "exp", "expm1", "log", "log1p", "log2", "log10",
    "sqrt", "rsqrt", "reciprocal", "sin", "cos", "tan", "atan", "sinh", "cosh", "tanh", "sigmoid", "erf",
    "exp2", "asin", "acos", "asinh", "acosh", "atanh",
    "relu", "isnan", "isinf", "logical_not", "clone", "alias", "detach", "lift_fresh_copy",
)  # fmt: skip
BINARY = (
    "add.Tensor", "sub.Tensor", "mul.Tensor", "div.Tensor", "remainder.Tensor", "eq.Tensor", "ne.Tensor",
    "lt.Tensor", "le.Tensor", "gt.Tensor", "ge.Tensor", "minimum.default", "maximum.default",
    "logical_and.default", "logical_or.default", "logical_xor.default", "fmod.Tensor", "hypot.default",
    "atan2.default",
)  # fmt: skip
NUMBER = ("mul", "remainder", "fmod", "eq", "ne", "lt", "le", "gt", "ge")
BITS = ("bitwise_and", "bitwise_or", "bitwise_xor")
# Of two tensors, and of one: each form is a function of the operation and of them.
BINARY_FORMS: dict[str, tuple[Form, ...]] = {
    **{name: (lambda op, a, b: op(a, b),) for name in BINARY},
    "add.Tensor": (lambda op, a, b: op(a, b), lambda op, a, b: op(a, b, alpha=2)),
    "div.Tensor_mode": (
        lambda op, a, b: op(a, b, rounding_mode="floor"),
        lambda op, a, b: op(a, b, rounding_mode="trunc"),
    ),
    "clamp.Tensor": (lambda op, a, b: op(a, b), lambda op, a, b: op(a, None, b)),
    "where.self": (lambda op, a, b: op(a != 0, a, b),),
    "copy.default": (lambda op, a, b: op(a, finite(b)),),
    "pow.Tensor_Tensor": (lambda op, a, b: op(a.double(), b.double()),),
    **{f"{name}.Tensor": (lambda op, a, b: op(a != 0, b != 0),) for name in BITS},
}
UNARY_FORMS: dict[str, tuple[Form, ...]] = {
    **{f"{name}.default": (lambda op, a, _: op(a),) for name in UNARY},
    **{f"{name}.Scalar": tuple(lambda op, a, _, s=s: op(a, s) for s in (2, -0.75, True)) for name in NUMBER},
    **{f"{name}.Scalar": (lambda op, a, _: op(a != 0, True),) for name in BITS},
    "bitwise_not.default": (lambda op, a, _: op(a != 0),),
    "add.Scalar": (lambda op, a, _: op(a, True), lambda op, a, _: op(a.double(), -0.75)),
    "remainder.Scalar_Tensor": tuple(lambda op, a, _, s=s: op(s, abs(a) + 1) for s in (7, -2.5)),
    "pow.Tensor_Scalar": tuple(lambda op, a, _, s=s: op(a, s) for s in (0, 1, 3, 18, -1, -2, 0.5, -0.5, 2.0)),
    "pow.Scalar": (lambda op, a, _: op(2.5, a),),
    "leaky_relu.default": (lambda op, a, _: op(a), lambda op, a, _: op(a, 0.25)),
    "elu.default": (lambda op, a, _: op(a), lambda op, a, _: op(a, 0.5, 2.0, 0.25)),
    "gelu.default": (lambda op, a, _: op(finite(a)), lambda op, a, _: op(finite(a), approximate="tanh")),
    "hardtanh.default": (lambda op, a, _: op(a), lambda op, a, _: op(a, -2, 3)),
    "clamp.default": tuple(lambda op, a, _, s=s: op(a, *s) for s in ((-1, 1), (None, 0.5), (0,), (1, -1))),
    "_to_copy.default": tuple(lambda op, a, _, d=d: op(finite(a), dtype=d) for d in DTYPES),
}
FORMS = {**UNARY_FORMS, **BINARY_FORMS}
SPECIAL = (-2.5, -2, -1, -0.75, -0.0, 0.0, 0.25, 0.5, 1.5, 2, 3, float("nan"), float("inf"), float("-inf"))


def finite(x: Any) -> Any:
    """The numbers that every dtype can hold: the whole line is of floats alone."""
    return torch.nan_to_num(x, 1, 2, 3) if x.is_floating_point() else x


def operation(name: str) -> Any:
    """The operation of ATen that a row is called by."""
    packet, overload = name.split(".")
    return getattr(getattr(torch.ops.aten, packet), overload)


def tensor(dtype: Any, seed: int, special: bool = True) -> Any:
    """Four rows of numbers, among them of floats all that are special."""
    random = np.random.default_rng(seed)
    if dtype == torch.bool:
        return torch.from_numpy(random.random((4, 14)) < 0.5)
    if dtype.is_floating_point and special:
        return torch.from_numpy(random.permuted(np.tile(SPECIAL, (4, 1)), axis=1)).to(dtype)
    return torch.from_numpy(random.integers(-4, 5, (4, 14))).to(dtype)


def given_by(form: Form, name: str, a: Any, b: Any) -> Any:
    """PyTorch's result; None where it refuses these dtypes."""
    try:
        return form(operation(name), a, b)
    except (RuntimeError, ValueError):
        return None


def same(what: str, found: Any, right: Any, length: int = 1) -> None:
    """Asserts that two arrays agree, in a message that says what they are."""
    try:
        assert_close(found, right, length)
    except AssertionError as error:
        error.add_note(what)
        raise


def test_every_row_number_by_number_has_its_forms() -> None:
    rows = list(ATEN)
    assert set(FORMS) == set(rows[: rows.index("max.dim")])


@pytest.mark.long
@pytest.mark.parametrize("first", DTYPES, ids=str)
def test_every_pair_of_dtypes_gives_what_pytorch_gives(first: Any, pytestconfig: pytest.Config) -> None:
    """Of all operations and second dtypes every sixth, from another one on for each first dtype; with --long
    all.
    """
    a, others = tensor(first, 1), {str(dtype): tensor(dtype, 2) for dtype in DTYPES}
    unary = [(name, form, str(first)) for name, forms in UNARY_FORMS.items() for form in forms]
    binary = [
        (name, form, other) for name, forms in BINARY_FORMS.items() for form in forms for other in others
    ]
    parts = 1 if pytestconfig.option.long else 6
    part = slice(DTYPES.index(first) % parts, None, parts)
    expected = {
        f"{place} {name} {other}": (name, form, other, right)
        for place, (name, form, other) in enumerate((unary + binary)[part])
        if (right := given_by(form, name, a, others[other])) is not None
    }
    assert len(expected) > 100 / parts

    def step(x: Any, h: Any, _: Any) -> tuple[Any, Any]:
        return {
            key: form(operation(name), x["a"], x[other]) for key, (name, form, other, _) in expected.items()
        }, h

    x = {"a": a, **others}
    rnn = trace(step, (x, torch.zeros(1, 1)))
    for engine in ("interpret", "llvm"):
        with np.errstate(all="ignore"):
            outputs, _ = rnn(ragged([{name: one[:3] for name, one in x.items()}, x]), engine=engine)
        for key, (_, _, _, right) in expected.items():
            assert str(right.dtype) == f"torch.{outputs[key].dtype}", key
            same(key, outputs[key].values, torch.cat([right[:3], right]))


def test_numbers_are_compared_in_the_dtype_that_they_have_in_common() -> None:
    x = {"whole": torch.tensor([2**24 + 1]), "single": torch.tensor([0.1])}
    double, beside = torch.tensor(0.1, dtype=torch.float64), torch.tensor([2.0**24])

    def step(x: Any, h: Any, params: Any) -> tuple[Any, Any]:
        return (x["whole"] == params[1][0], x["single"] == params[0], x["single"] > params[0]), h

    rnn = trace(step, (x, torch.zeros(1, 1), (double, beside)))
    right, _ = step(x, None, (double, beside))
    assert [one.item() for one in right] == [True, True, False]  # NumPy compares either in float64
    for engine in ("interpret", "llvm"):
        outputs, _ = rnn(ragged([x]), engine=engine)
        assert [one.values.tolist() for one in outputs] == [[True], [True], [False]]


# ---- random expressions ------------------------------------------------------------------------------

# What keeps a small difference small: the only operations of what was rounded before.
SMOOTH = {
    "add.Tensor", "sub.Tensor", "mul.Tensor", "mul.Scalar", "neg.default", "abs.default", "tanh.default",
    "sigmoid.default", "erf.default", "relu.default", "leaky_relu.default", "elu.default", "gelu.default",
    "minimum.default", "maximum.default", "hardtanh.default", "clamp.default", "clamp.Tensor",
}  # fmt: skip


@dataclass(frozen=True)
class Value:
    """The result of a line of a program, whether there is one per row, and how often it was rounded."""

    tensor: Any
    per_row: bool
    rounded: int


@dataclass(frozen=True)
class Line:
    """One operation in one of its forms, of two values by their places."""

    name: str
    form: int
    one: int
    other: int

    def __call__(self, values: Sequence[Any]) -> Any:
        form = FORMS[self.name][self.form]
        return form(operation(self.name), values[self.one], values[self.other])


def is_exact(tensor: Any) -> bool:
    """True if numbers have so few bits that nothing was rounded."""
    numbers = tensor.double()
    return bool((numbers.abs() <= 2**10).all() and (numbers * 64 == (numbers * 64).round()).all())


def value_of(line: Line, values: list[Value]) -> Value | None:
    """The result of a line; None where PyTorch refuses it, and where rounding might change much."""
    tensor = given_by(
        FORMS[line.name][line.form], line.name, values[line.one].tensor, values[line.other].tensor
    )
    used = [values[line.one], *([values[line.other]] if line.name in BINARY_FORMS else [])]
    if tensor is None or not bool(tensor.isfinite().all()):
        return None
    rounded = max(one.rounded for one in used)
    per_row = any(one.per_row for one in used)
    if rounded == 0 and is_exact(tensor):
        return Value(tensor, per_row, 0)
    small = all(bool((one.tensor.double().abs() <= 4).all()) for one in used)
    smooth = rounded == 0 or (
        line.name in SMOOTH and rounded < 3 and all(one.tensor.dtype == tensor.dtype for one in used)
    )
    return Value(tensor, per_row, rounded + 1) if small and smooth and tensor.is_floating_point() else None


SOURCES = [
    *(Value(tensor(dtype, 3, special=False), True, 0) for dtype in DTYPES),
    *(Value(tensor(dtype, 4, special=False)[0], False, 0) for dtype in DTYPES),
    *(Value(tensor(dtype, 5, special=False)[0, 0], False, 0) for dtype in DTYPES),
]
"""An input, a parameter and a parameter without axes, which counts less in PyTorch, of each dtype."""


@st.composite
def programs(draw: st.DrawFn) -> tuple[list[Line], list[Value]]:
    """Lines, and what they give after the sources."""
    lines, values = list[Line](), list(SOURCES)
    for _ in range(draw(st.integers(8, 24))):
        name = draw(st.sampled_from(list(FORMS)))
        form = draw(st.integers(0, len(FORMS[name]) - 1))
        one, other = (draw(st.integers(0, len(values) - 1)) for _ in range(2))
        line = Line(name, form, one, other)
        if (value := value_of(line, values)) is not None:
            lines.append(line)
            values.append(value)
    return lines, values[len(SOURCES) :]


@pytest.mark.long(examples=3)
@settings(max_examples=8)
@given(programs())
def test_random_expressions_give_what_pytorch_gives(program: tuple[list[Line], list[Value]]) -> None:
    lines, expected = program

    def step(x: Any, h: Any, params: Any) -> tuple[Any, Any]:
        values = [*x, *params]
        for line in lines:
            values.append(line(values))
        return values[len(SOURCES) :], h

    x = [one.tensor for one in SOURCES if one.per_row]
    params = [one.tensor for one in SOURCES if not one.per_row]
    rnn = trace(step, (x, torch.zeros(1, 1), params))
    for engine in ("interpret", "llvm"):
        outputs, _ = rnn(ragged([x, [one[:1] for one in x], [one[:0] for one in x]]), engine=engine)
        for line, output, value in zip(lines, outputs, expected, strict=True):
            right = value.tensor if value.per_row else value.tensor.expand(4, *value.tensor.shape)
            assert str(right.dtype) == f"torch.{output.dtype}", line
            same(str(line), output.values, torch.cat([right, right[:1]]), len(lines))
