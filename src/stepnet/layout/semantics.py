"""The function that weights parametrise, independent of their layout and framework.

    simple recurrence   h' = candidate(W x + b + R h + d)
    GRU, reset after    n = candidate(W_n x + b_n + r (R_n h + d_n))
    GRU, reset before   n = candidate(W_n x + b_n + R_n (r h) + d_n)
    update keep         h' = z h + (1 - z) n              z keeps the old memory
    update write        h' = (1 - z) h + z n              z writes the new one
    LSTM                c' = s(f + forget_bias) c + s(i) candidate(g),   h' = s(o) output(c')
    coupled             i = 1 - f
    peepholes           i and f see p c, o sees p c'

A choice that a framework offers is a `Setting` in its record. The arrays do not contain its value. A usual
value is assumed and reported. Without one, the user must state the value.
"""

from collections.abc import Collection, Mapping
from dataclasses import fields
from numbers import Real
from typing import Any

from stepnet.compiler.values.arguments import is_one_of, short_repr
from stepnet.compiler.values.records import dataclass
from stepnet.errors import LayoutError
from stepnet.layout.options import option

GATES = {"rnn": "n", "gru": "rzn", "lstm": "ifgo", "mgu": "fn"}

# Functions with s(-a) = 1 - s(a): negating the weights of a gate inverts its sense.
SYMMETRIC = ("sigmoid", "hard_sigmoid", "hard_sigmoid_fifth")
ACTIVATIONS = (*SYMMETRIC, "tanh", "relu", "linear", "softsign", "elu", "selu", "softplus", "silu", "gelu")

FIELDS = {  # the fields that apply to a cell
    "rnn": ("candidate_activation", "clip"),
    "gru": ("reset", "update", "gate_activation", "candidate_activation", "clip"),
    "mgu": ("reset", "update", "gate_activation", "candidate_activation"),
    "lstm": (
        "coupled",
        "forget_bias",
        "gate_activation",
        "candidate_activation",
        "output_activation",
        "clip",
        "cell_clip",
        "projection_clip",
    ),
}
VALUES: dict[str, tuple[Any, ...]] = {
    "reset": ("after", "before"),
    "update": ("keep", "write"),
    "coupled": (True, False),
    "gate_activation": ACTIVATIONS,
    "candidate_activation": ACTIVATIONS,
    "output_activation": ACTIVATIONS,
}  # fields that are not listed are numbers


@dataclass(frozen=True)
class Setting:
    """A choice that a framework offers its users for the function of a layer, such as the activation.

    name: the framework's name of the setting.
    values: the framework's values, by stepnet's values; None if the setting is a number.
    usual: the usual value, as stepnet's; None if there is none.
    unstated: the value that the framework has where the setting is left out, and refuses; None for none.

    >>> Setting("linear_before_reset", {"after": 1, "before": 0}).text("after")
    'linear_before_reset=1'
    """

    name: str
    values: Mapping[Any, Any] | None = None
    usual: Any = None
    unstated: Any = None

    @property
    def allowed(self) -> frozenset[Any] | None:
        """The values, in stepnet's terms, that the setting can have; None if it is a number."""
        return None if self.values is None else frozenset(self.values)

    def allows(self, value: Any) -> bool:
        """Tells if the framework can compute with `value`, a value in stepnet's terms, of this setting."""
        return self.values is None or is_among(value, self.values)

    def ours(self, name: str, value: Any) -> Any:
        """Translates a framework's value of the setting to stepnet's, such as 1 to "after". Raises
        `LayoutError` for a value that the setting cannot have; `name` is the layout's, for the message.
        """
        if self.values is None:
            return value
        for our_value, theirs in self.values.items():
            if theirs == value:
                return our_value
        allowed_values = ", ".join(map(repr, self.values.values()))
        raise LayoutError(f"{self.name} of {name} is one of {allowed_values}, not {value!r}")

    def theirs(self, value: Any) -> Any:
        """Translates a value in stepnet's terms to the framework's value of this setting."""
        return value if self.values is None else self.values[value]

    def text(self, value: Any) -> str:
        """Writes the setting with a value in the framework's own terms, such as "linear_before_reset=1"."""
        return f"{self.name}={value if self.values is None else self.theirs(value)!r}"


def same(*values: str) -> dict[str, str]:
    """Maps each value to itself, for a setting whose values a framework and stepnet call by the same names.

    >>> same("tanh", "relu")
    {'tanh': 'tanh', 'relu': 'relu'}
    """
    return {value: value for value in values}


@dataclass(frozen=True)
class Semantics:
    """The function of a cell, which weights parametrise. Fields that the cell lacks keep their defaults.

    Attributes:
        cell: "rnn", "gru", "lstm" or "mgu".
        reset: "after" or "before" the recurrent product.
        update: Whether the update gate z keeps the old memory, "keep", or writes the new one, "write".
        coupled: Whether the input gate is i = 1 - f.
        forget_bias: A number that the cell adds to the forget gate.
        gate_activation: The activation of the gates. hard_sigmoid(a) is clip(a / 6 + 1/2, 0, 1), as in Keras
            3 and PyTorch; hard_sigmoid_fifth(a) is clip(a / 5 + 1/2, 0, 1), as in Keras 2, Theano and ONNX.
        candidate_activation: The activation of the candidate n or g.
        output_activation: The activation of c' in the output of an LSTM.
        clip: The bound of the inputs to the activations of gates and candidate; 0 for none.
        cell_clip: The bound of the cell c'; 0 for none.
        projection_clip: The bound of the projected output; 0 for none.

    >>> Semantics("gru", update="write")
    Semantics(gru: reset='after', update='write')
    """

    cell: str
    reset: str = "after"
    update: str = "keep"
    coupled: bool = False
    forget_bias: float = 0.0
    gate_activation: str = "sigmoid"
    candidate_activation: str = "tanh"
    output_activation: str = "tanh"
    clip: float = 0.0
    cell_clip: float = 0.0
    projection_clip: float = 0.0

    def __post_init__(self) -> None:
        """Raises `LayoutError` for an unknown cell, and for impossible values of fields."""
        check_semantics("semantics", self.cell, self.changed())

    def changed(self) -> dict[str, Any]:
        """Returns the fields of a cell's function that differ from their defaults, except `cell`, by name."""
        usual = {field.name: field.default for field in fields(self)}
        fields_ = {name: value for name, value in vars(self).items() if name != "cell"}
        return {name: value for name, value in fields_.items() if not is_among(value, [usual[name]])}

    def shown(self) -> dict[str, Any]:
        """Returns a cell's fields to print: reset and update of a GRU or MGU, and those not default."""
        always = ("reset", "update") if self.cell in ("gru", "mgu") else ()
        return {name: getattr(self, name) for name in always} | self.changed()

    def __repr__(self) -> str:
        """The cell and its unusual fields, such as "Semantics(gru: reset='after', update='write')"."""
        fields_ = ", ".join(f"{name}={value!r}" for name, value in self.shown().items())
        return f"Semantics({self.cell}{': ' if fields_ else ''}{fields_})"

    @classmethod
    def settled(
        cls, name: str, cell: str, fixed: Mapping[str, Any], stated: Mapping[str, Any]
    ) -> "Semantics":
        """Returns the function that weights in a layout (a framework's arrangement of weights) parametrise.
        `fixed` has, by field, the layout's value or the `Setting` that decides it; `stated` has the user's
        values; `name` is the layout's, for messages. Raises `LayoutError` for an open field without a value,
        for a fixed one with another value, and for the framework's name in place of a field's.
        """
        settings = {field: value.name for field, value in fixed.items() if isinstance(value, Setting)}
        for given in stated.keys() - fixed.keys():
            if meant := [field for field, theirs in settings.items() if theirs == given]:
                raise LayoutError(f"{name}: semantics have {' and '.join(meant)} in place of {given}")
        check_semantics(name, cell, stated)
        values: dict[str, Any] = {}
        for field, value in fixed.items():
            values[field] = open_value(name, field, value, stated) if isinstance(value, Setting) else value
        for field, value in stated.items():
            if not isinstance(fixed.get(field), Setting) and value != getattr(cls(cell, **values), field):
                raise LayoutError(
                    f"{name} has {field}={getattr(cls(cell, **values), field)!r}, which cannot be "
                    f"changed to {value!r}"
                )
        return cls(cell, **values)


def open_value(name: str, field: str, setting: Setting, stated: Mapping[str, Any]) -> Any:
    """Returns the value of a field of `Semantics` that the arrays leave open: that in `stated` (the user's
    values, by field), else the usual value of `setting`. Raises `LayoutError`, with the layout's `name`, if
    there is neither, or if the framework cannot compute with the stated value.
    """
    if field in stated:
        if not setting.allows(stated[field]):
            raise LayoutError(
                f"{name} has {field} {' or '.join(map(repr, setting.values or ()))}, not {stated[field]!r}"
            )
        return stated[field]
    if setting.usual is None:
        choice = " or ".join(map(repr, setting.values)) if setting.values else "a number"
        remedy = option("semantics", field=field, value="VALUE", choice=choice)
        raise LayoutError(
            f"{name}: the arrays do not determine {field} (its name there: {setting.name}): say {remedy}"
        )
    return setting.usual


def check_semantics(name: str, cell: str, values: Mapping[str, Any]) -> None:
    """Raises `LayoutError` for an unknown cell, fields that the cell lacks, and impossible values. `name` is
    the layout's, for messages; `values` has a value or a `Setting` by field.
    """
    if not is_one_of(cell, GATES):
        raise LayoutError(f"{name}: cell is one of {', '.join(GATES)}, not {short_repr(cell)}")
    for field, value in values.items():
        if field not in FIELDS[cell]:
            raise LayoutError(f"{name}: the cell {cell} has no {field!r}; it has {', '.join(FIELDS[cell])}")
        if isinstance(value, Setting):
            continue
        allowed = VALUES.get(field)
        if allowed is not None and not is_among(value, allowed):
            raise LayoutError(
                f"{name}: {field} is one of {', '.join(map(repr, allowed))}, not {short_repr(value)}"
            )
        if allowed is None and (isinstance(value, bool) or not isinstance(value, Real)):
            raise LayoutError(f"{name}: {field} is a number, not {short_repr(value)}")


def is_among(value: Any, allowed: Collection[Any]) -> bool:
    """Tells if a field's value is among the allowed ones; False for types other than text and numbers."""
    return isinstance(value, str | int | float) and value in allowed
