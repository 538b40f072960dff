"""The report of a conversion, step by step."""

from collections.abc import Container, Iterable, Mapping
from dataclasses import asdict, field
from itertools import groupby
from typing import Any

from stepnet.compiler.values.records import dataclass
from stepnet.layout.moves import Move, target_sizes
from stepnet.layout.options import OPTIONS
from stepnet.layout.places import ParameterBlock
from stepnet.layout.record import Record
from stepnet.layout.semantics import Semantics
from stepnet.layout.sizes import Sizes

ORDER = ("moved", "negated", "filled", "summed")


@dataclass(frozen=True)
class ConversionStep:
    """Part of a conversion, for its report: the blocks of the target that were computed in the same way.

    kind: moved, negated, summed or filled.
    moves: the formulas of the blocks, one or more.
    rounding: the largest rounding error; 0 if no number was rounded.
    """

    kind: str
    moves: tuple[Move, ...]
    rounding: float = 0.0

    @property
    def exact(self) -> bool:
        """True if the step of the conversion is bit-exact: it rounded no number."""
        return self.rounding == 0

    @property
    def what(self) -> str:
        """The step in words, such as "W_rz: moved", for the report of the conversion."""
        blocks = blocks_text(move.target for move in self.moves)
        if self.kind == "moved":
            return f"{blocks}: moved"
        if self.kind == "negated":
            return f"{blocks}: negated, as {negation(self.moves)}"
        if self.kind == "filled":
            numbers = dict.fromkeys(f"{move.constant:g}" for move in self.moves)
            return f"{blocks}: filled with {', '.join(numbers)}"
        return f"{blocks}: summed ({', '.join(dict.fromkeys(map(sum_text, self.moves)))})"

    def __str__(self) -> str:
        """The step as a line of the report, with its rounding error."""
        how = "bit-exact" if self.exact else f"rounded once, by {self.rounding:.3g} at most"
        return f"{self.what}: {how}"


@dataclass(frozen=True)
class ComputedArray:
    """An array of the source that was computed from other arrays of its file.

    of: the names of the arrays from which it was computed.
    how: the formula.
    rounding: the largest rounding error; None if nothing was rounded.
    """

    name: str
    of: tuple[str, ...]
    how: str
    rounding: float | None = None

    @property
    def exact(self) -> bool:
        """True if an array that was computed from others of its file was not rounded in the computation."""
        return self.rounding is None

    @property
    def what(self) -> str:
        """A sentence on the computation of the array from others, for the report of the conversion."""
        return f"{self.name}: {self.how}, of {', '.join(self.of)}"

    def __str__(self) -> str:
        """The computed array as a line of the report, with its rounding error."""
        how = "bit-exact" if self.rounding is None else f"rounded once, by {self.rounding:.3g} at most"
        return f"{self.what}: {how}"


@dataclass(frozen=True)
class Report:
    """The steps of a conversion. `print(report)` shows them.

    Attributes:
        source: The name of the source's layout.
        target: The name of the target's layout.
        sizes: The sizes of the source.
        source_semantics: The function that the source's numbers parametrise.
        target_semantics: The function that the target's numbers parametrise.
        kind: "weights", "gradient" or "second_moment".
        steps: What was done to the blocks, the most exact first.
        layout: The record of the target.
        made: Arrays that were computed from other arrays of the source while it was read.
        assumed: The settings of the source that are assumed to have their usual values, by its framework's
            names.
    """

    source: str
    target: str
    sizes: Sizes
    source_semantics: Semantics
    target_semantics: Semantics
    kind: str
    steps: tuple[ConversionStep, ...]
    layout: Record = field(repr=False, hash=False)
    made: tuple[ComputedArray, ...] = ()
    assumed: Mapping[str, Any] = field(default_factory=dict[str, Any], hash=False)

    @property
    def notes(self) -> tuple[str, ...]:
        """Remarks on the layout of the converted weights that the user should know."""
        return self.layout.notes

    @property
    def target_sizes(self) -> Sizes:
        """The sizes of the converted layer: the source's, without a projection if the target has none."""
        return target_sizes(self.sizes, self.layout)

    @property
    def open_fields(self) -> dict[str, Any]:
        """The settings of the converted layer's function, such as activations, that the target's layout
        (arrangement of weights) does not fix, by field of `Semantics`. A reader of the converted weights
        states them in its argument `semantics`.
        """
        return {name: getattr(self.target_semantics, name) for name in self.layout.settings()}

    @property
    def exact(self) -> bool:
        """True if every step of the conversion is bit-exact: no number was rounded."""
        return all(item.exact for item in (*self.made, *self.steps))

    @property
    def rounding(self) -> float:
        """The largest rounding error of the conversion; 0 if no number was rounded."""
        return max((item.rounding or 0.0 for item in (*self.made, *self.steps)), default=0.0)

    @property
    def settings(self) -> dict[str, Any]:
        """The target framework's settings that the converted weights need, by its own names and values: not
        those that it has where they are left out, and does not take, such as a `clip` of 0 in ONNX.
        """
        return {
            setting.name: value if setting.values is None else setting.values[value]
            for name, setting in self.layout.settings().items()
            for value in [getattr(self.target_semantics, name)]
            if setting.unstated is None or value != setting.unstated
        }

    def as_json(self) -> dict[str, Any]:
        """Returns the report on a conversion of weights as a dict of plain values, to write as JSON."""
        return {
            "source": self.source,
            "target": self.target,
            "kind": self.kind,
            "exact": self.exact,
            "rounding": self.rounding,
            "sizes": vars(self.sizes),
            "semantics": {"source": self.source_semantics.shown(), "target": self.target_semantics.shown()},
            "assumed": {name: str(value) for name, value in self.assumed.items()},
            "settings": {name: str(value) for name, value in self.settings.items()},
            "steps": [
                {"kind": step.kind, "what": step.what, "exact": step.exact, "rounding": step.rounding}
                for step in self.steps
            ],
            "made": [asdict(array) for array in self.made],
            "notes": list(self.notes),
        }

    def __str__(self) -> str:
        """The whole report as text."""
        return self.text()

    def text(self, known: Container[str] = ()) -> str:
        """Returns the report of the conversion as text, with a line per step, assumption and note.

        Args:
            known: Notes (remarks on the target's layout) to omit, because another report has shown them.
        """
        kind = "" if self.kind == "weights" else f" ({self.kind})"
        lines = [f"{self.source} -> {self.target}{kind}: {self.sizes}"]
        lines += [f"  {item}" for item in (*self.made, *self.steps)]
        lines += [f"  {text}" for text in assumed_text(self.assumed)]
        if self.settings:
            lines.append(
                "  set there: " + ", ".join(f"{name}={value!r}" for name, value in self.settings.items())
            )
        lines += [f"  note: {note}" for note in self.notes if note not in known]
        return "\n".join(lines)


def assumed_text(assumed: Mapping[str, Any]) -> list[str]:
    """Returns the line of a report that lists the assumed settings of a conversion; [] if there are none.

    assumed: the assumed values, by the framework's names of the settings.

    >>> assumed_text({"activation": "tanh"})
    ["assumed as usual: activation='tanh' (--semantics, or semantics=, says otherwise)"]
    """
    values = ", ".join(f"{name}={value!r}" for name, value in assumed.items())
    remedy = OPTIONS["semantics"].name
    return [f"assumed as usual: {values} ({remedy}, or {remedy[2:]}=, says otherwise)"] if values else []


def steps(roundings: Mapping[Move, float]) -> tuple[ConversionStep, ...]:
    """Groups moves (formulas of the new blocks, one parameter of one gate each) by kind into the steps of a
    report, in the order of `ORDER`.

    roundings: each move's rounding error. A step has the largest rounding error of its moves.
    """
    ordered = sorted(roundings, key=lambda move: ORDER.index(move.kind))
    return tuple(
        ConversionStep(kind, moves, max(roundings[move] for move in moves))
        for kind, group in groupby(ordered, key=lambda move: move.kind)
        for moves in [tuple(group)]
    )


def blocks_text(blocks: Iterable[ParameterBlock]) -> str:
    """Formats blocks (gates' parameters) for reports: each parameter with its gates, no layers or directions.

    >>> blocks = ParameterBlock("W", "r"), ParameterBlock("W", "z"), ParameterBlock("b", "r", layer=1)
    >>> blocks_text([*blocks, ParameterBlock("P")])
    'W_rz, b_r, P'
    """
    gates: dict[str, str] = {}
    for block in blocks:
        gates_so_far = gates.setdefault(block.parameter, "")
        gates[block.parameter] += block.gate if block.gate not in gates_so_far else ""
    return ", ".join(f"{name}_{letters}" if letters else name for name, letters in gates.items())


def negation(moves: Iterable[Move]) -> str:
    """Returns the reason, for a report, why the blocks (gates' parameters) of these moves (formulas of a
    conversion) change their sign: the source computes i as 1 - f, or its update gate has the opposite sense.
    In the text, s is the activation of gates.
    """
    if any(move.target.gate == "i" for move in moves):
        return "1 - s(a) = s(-a) turns the coupled forget gate into an input gate"
    return "1 - s(a) = s(-a) inverts the sense of the update gate"


def sum_text(move: Move) -> str:
    """Returns the sum of blocks of a move, without layers and directions, for a report."""
    texts = [
        f"{'+' if sign > 0 else '-'} {ParameterBlock(block.parameter, block.gate)}"
        for block, sign in move.terms
    ]
    texts += [f"+ {move.constant:g}"] if move.constant else []
    return " ".join(texts).removeprefix("+ ")
