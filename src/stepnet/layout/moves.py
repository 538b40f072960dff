"""The difference of two layouts as a list of moves, one for each block of the target.

A move is bit-exact or rounded once. A difference that no move expresses is a refusal.

    torch.gru -> keras.gru          W_r ... d_n moved: no number changes
    haiku.gru -> torch's sense      W_z, R_z, b_z negated: 1 - s(a) = s(-a)
    keras.lstm -> torch.lstm        b moved, d filled with zeros
    torch.lstm -> keras.lstm        b + d, rounded once
    tf1.basic_lstm -> torch.lstm    b moved, d_f filled with the forget bias
    torch.gru -> nnx.gru            d_n has no place: it must be zero, or this is refused
    haiku.gru -> torch.gru          R_n must be diagonal, so that R_n (r h) = r (R_n h)
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from stepnet.layout.options import option
from stepnet.layout.places import Block
from stepnet.layout.record import Record
from stepnet.layout.semantics import FIELDS, SYMMETRIC, Semantics, Setting
from stepnet.layout.sizes import Sizes

KINDS = ("weights", "gradient", "second_moment")
BIASES = ("b", "d")
SENSE = {"gru": "z", "mgu": "f"}  # the gate that keeps or writes


@dataclass(frozen=True)
class Move:
    """How a block of the target is made: as a sum of blocks of the source, each with a sign, and a constant.

    >>> Move(Block("b", "z"), ((Block("b", "z"), 1), (Block("d", "z"), 1)))
    b_z = b_z + d_z
    """

    target: Block
    terms: tuple[tuple[Block, int], ...] = ()
    constant: float = 0.0

    @property
    def kind(self) -> str:
        """moved, negated, summed or filled."""
        if not self.terms:
            return "filled"
        if len(self.terms) > 1 or self.constant:
            return "summed"
        return "moved" if all(sign > 0 for _, sign in self.terms) else "negated"

    def __repr__(self) -> str:
        parts = [f"{'+' if sign > 0 else '-'} {block}" for block, sign in self.terms]
        parts += [f"+ {self.constant:g}"] if self.constant or not parts else []
        return f"{self.target} = {' '.join(parts).removeprefix('+ ')}"


@dataclass(frozen=True)
class Demand:
    """A condition on numbers of the source without which a conversion is impossible.

    block, added: the sum of these blocks is meant. must_be: a number that all its elements are, "the
    identity", "diagonal", or "equal" to `other`, or "negative" of it. reason: the message, in which {} stands
    for the blocks that miss the condition. advice: what else can be done.
    """

    block: Block
    must_be: str | float
    reason: str
    other: Block | None = None
    added: tuple[Block, ...] = ()
    advice: str = ""

    @property
    def what(self) -> str:
        """The sum of blocks that the condition is about, as text."""
        return " + ".join(map(str, (self.block, *self.added)))

    @property
    def must(self) -> str:
        """The required value, as text."""
        if self.other is not None:
            return f"{'-' if self.must_be == 'negative' else ''}{self.other}"
        return self.must_be if isinstance(self.must_be, str) else f"{self.must_be:g}"


@dataclass(frozen=True)
class Differences:
    """How to get from a source to a target: moves, conditions on the source's numbers, and refusals.

    semantics: those of the target.
    """

    semantics: Semantics
    moves: tuple[Move, ...]
    demands: tuple[Demand, ...]
    refusals: tuple[str, ...]


def differences(
    source: Record,
    source_semantics: Semantics,
    held: Iterable[Block],
    target: Record,
    asked: dict[str, Any],
    wanted: Iterable[Block],
    kind: str = "weights",
) -> Differences:
    """The moves that make the blocks `wanted` in the target from the blocks `held` by the source.

    asked: the stated semantics of the target. kind: "weights"; "gradient" of weights, or a moment that is
    linear in it; its "second_moment".
    """
    semantics, refusals = target_semantics(source, source_semantics, target, asked, kind)
    making = Making(source_semantics, semantics, frozenset(held), frozenset(wanted), target, kind)
    moves = tuple(making.move(block) for block in sorted(making.wanted, key=Block.order))
    used = {block for move in moves for block, _ in move.terms}
    demands = tuple(making.demands(used))
    return Differences(semantics, moves, demands, (*refusals, *making.unknown(moves)))


# ---- the function
# --------------------------------------------------------------------------------------------


def target_semantics(
    source: Record, source_semantics: Semantics, target: Record, asked: dict[str, Any], kind: str
) -> tuple[Semantics, list[str]]:
    """The semantics of the target, and the reasons why the source's function cannot have them."""
    if source.cell != target.cell:
        return source_semantics, [
            f"the cell of {source.name} is {source.cell}, and that of {target.name} is {target.cell}"
        ]
    fixed = Semantics(target.cell)
    values: dict[str, Any] = dict(asked)
    refusals: list[str] = []
    for name in FIELDS[target.cell]:
        value = getattr(source_semantics, name)
        known = target.semantics.get(name, getattr(fixed, name))
        if name in asked:
            known = asked[name]
        elif isinstance(known, Setting):
            known = value if known.allows(value) else nearest(name, known)
        values[name] = known
        if known != value:
            reason = obstacle(name, value, known, source_semantics, target, kind)
            refusals += [reason] if reason else []
    settings = target.settings()
    target.settled({name: value for name, value in values.items() if name in settings} | asked)
    by_setting: dict[str, set[Any]] = {}
    for name, setting in settings.items():
        by_setting.setdefault(setting.name, set()).add(values[name])
    for setting, choices in by_setting.items():
        if len(choices) > 1:
            refusals.append(f"{target.name} has one {setting} for {' and '.join(sorted(map(str, choices)))}")
    return Semantics(target.cell, **values), refusals


def nearest(name: str, setting: Setting) -> Any:
    """The value of a target's setting, for messages, if the source's value is none of its values."""
    usual = getattr(Semantics("gru"), name)
    values = list(setting.values or ())
    return usual if usual in values else values[0]


def obstacle(
    name: str, value: Any, known: Any, source_semantics: Semantics, target: Record, kind: str
) -> str:
    """Why a difference of semantics cannot be expressed by signs and biases; "" if it can."""
    if name == "update" and source_semantics.gate_activation not in SYMMETRIC:
        activation = source_semantics.gate_activation
        return f"the sense of z turns round by signs only where s(-a) = 1 - s(a), not for {activation}"
    if name == "update" and source_semantics.cell == "mgu":
        return "the gate that keeps or writes also resets: signs would turn round both"
    if name in ("update", "forget_bias"):
        return ""
    if name == "coupled":  # then i and f are made of one another, or have to be equal: see `demands`
        if source_semantics.gate_activation not in SYMMETRIC:
            activation = source_semantics.gate_activation
            return f"i is 1 - f on one side, and 1 - s(a) = s(-a) does not hold for {activation}"
        if source_semantics.coupled and source_semantics.forget_bias and not target.has_biases:
            takes = f"{-source_semantics.forget_bias:+g}"
            return f"i is 1 - f in the source, and the target has no bias for i that takes {takes}"
        return ""
    if name == "reset":  # then R_n has to be diagonal
        return "" if kind == "weights" else f"the {kind} of R_n is another where the reset is {known} it"
    what = f"{value or 'none'}, and {target.name} has {known or 'none'}"
    remedy = option("semantics", field=name, value="0", choice="0")
    unless = f", unless nothing ever reaches it: then say {remedy}" if name.endswith("clip") and value else ""
    return f"the source's {name} is {what}: these are different functions{unless}"


# ---- the blocks
# ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Making:
    """The facts that moves are made from: the semantics of both sides, and the blocks held and wanted."""

    source_semantics: Semantics
    semantics: Semantics
    held: frozenset[Block]
    wanted: frozenset[Block]
    target: Record
    kind: str

    def move(self, block: Block) -> Move:
        """The move that makes a block of the target."""
        if block.parameter in BIASES:
            return self.bias(block)
        terms, constant = ((block, self.sign(block)),), 0.0
        if block.gate == "i" and self.source_semantics.coupled:
            terms = ((replace(block, gate="f"), -1),)
        return Move(block, tuple(term for term in terms if term[0] in self.held), constant)

    def sign(self, block: Block) -> int:
        """-1 if the sense of the block's gate is inverted, else 1; a second moment keeps its sign."""
        turns = self.source_semantics.update != self.semantics.update and block.gate == SENSE.get(
            self.source_semantics.cell
        )
        return -1 if turns and self.kind != "second_moment" else 1

    def adds(self, block: Block) -> bool:
        """Whether b and d of the block's gate are only used as their sum."""
        return (
            self.source_semantics.cell not in SENSE
            or block.gate != "n"
            or self.source_semantics.reset == "before"
        )

    @property
    def resets_differ(self) -> bool:
        """Whether one side resets before the recurrent product, and the other after it."""
        return self.source_semantics.reset != self.semantics.reset

    def sides(self, block: Block, among: frozenset[Block]) -> list[Block]:
        """Those of b and d of the block's gate that are among some blocks."""
        both = (replace(block, parameter=parameter) for parameter in BIASES)
        return [side for side in both if side in among]

    def offset(self, block: Block) -> float:
        """The number that the source's function adds to f, or to i made from f, and the target's does not."""
        if self.source_semantics.cell != "lstm" or self.kind != "weights":
            return 0.0
        if (
            block.gate == "i" and self.source_semantics.coupled
        ):  # made of f, whose sum has the forget bias in it
            return self.source_semantics.forget_bias
        return self.source_semantics.forget_bias - self.semantics.forget_bias if block.gate == "f" else 0.0

    def bias(self, block: Block) -> Move:
        """The move that makes b or d of a gate."""
        gate = "f" if block.gate == "i" and self.source_semantics.coupled else block.gate
        like = replace(block, gate=gate)
        sign = -1 if gate != block.gate else self.sign(block)
        source_sides, target_sides = self.sides(like, self.held), self.sides(block, self.wanted)
        if not self.adds(block):
            return Move(block, ((block, sign),) if block in self.held else ())
        if block.gate == "n" and self.resets_differ:  # the target's reset bias is not part of a sum
            return Move(block, tuple((side, sign) for side in source_sides) if block.parameter == "b" else ())
        offset = sign * self.offset(block)
        if len(target_sides) == 1:
            taken = source_sides[:1] if self.kind != "weights" else source_sides
            return Move(block, tuple((side, sign) for side in taken), offset)
        lone = block.parameter == self.target.lone_bias
        if len(source_sides) == 2:
            return Move(block, ((like, sign),), 0.0 if lone else offset)
        if self.kind != "weights":  # each bias adds to the same sum, so each has its gradient
            return Move(block, tuple((side, sign) for side in source_sides))
        return Move(
            block, tuple((side, sign) for side in source_sides) if lone else (), 0.0 if lone else offset
        )

    def demands(self, used: set[Block]) -> Iterator[Demand]:
        """The conditions on blocks that have no place in the target, or another meaning there."""
        if self.resets_differ:
            yield from self.of_reset()
        for block in sorted(self.held - used, key=Block.order):
            other = next((side for side in self.sides(block, self.held) if side in used), None)
            if block.gate == "i" and self.semantics.coupled:
                yield from self.of_coupling(block)
            elif block.parameter == "P" and self.kind == "weights":
                yield Demand(block, "the identity", "the target has no projection")
            elif self.kind != "weights" and block.parameter in BIASES and other and self.adds(block):
                yield Demand(
                    block, "equal", "both biases add to one sum, so their gradients are equal", other
                )
            elif self.kind == "weights" and block.parameter in BIASES and self.adds(block):
                yield from self.of_bias(block)
            else:
                yield Demand(block, 0.0, "the target has no place for {}")

    def of_bias(self, block: Block) -> Iterator[Demand]:
        """The condition on the biases of a gate that the target has no bias for: it is on their sum."""
        first, *others = self.sides(block, self.held)
        reason = "the target has no place for {}"
        if block.gate == "n" and self.resets_differ:
            reason = "the target has no bias of n that it does not reset"
        if block == first:
            yield Demand(block, 0.0 - self.offset(block), reason, added=tuple(others))

    def of_reset(self) -> Iterator[Demand]:
        """The conditions if one side resets before the recurrent product, and the other after it."""
        value, known = self.source_semantics.reset, self.semantics.reset
        how = f"the source resets {value} the recurrent product and {self.target.name} {known} it"
        reason = f"{how}: R_n (r h) and r (R_n h) are equal for every r only if R_n is diagonal"
        advice = f"a target that resets {value} it asks for no such R_n"
        for block in sorted(self.held, key=Block.order):
            if (block.parameter, block.gate) == ("R", "n"):
                yield Demand(block, "diagonal", reason, advice=advice)
            if (block.parameter, block.gate, value) == ("d", "n", "after") and block in self.wanted:
                yield Demand(block, 0.0, f"{self.target.name} resets no bias")

    def of_coupling(self, block: Block) -> Iterator[Demand]:
        """The conditions on a block of the input gate if the target derives that from the forget gate."""
        reason, like = "i is 1 - f in the target", replace(block, gate="f")
        ours, theirs = self.sides(block, self.held), self.sides(like, self.held)
        if block.parameter not in BIASES or (
            len(ours) == len(theirs) == 1 and not self.source_semantics.forget_bias
        ):
            yield Demand(block, "negative", reason, like)
        elif block == ours[0]:  # only the sums of all biases are of consequence
            yield Demand(block, 0.0 - self.source_semantics.forget_bias, reason, added=(*ours[1:], *theirs))

    def unknown(self, moves: tuple[Move, ...]) -> Iterator[str]:
        """The refusals for blocks that the target needs and the source lacks, or that the target cannot
        hold.
        """
        for block in {replace(block, parameter="b", gate="f") for block in self.held}:
            here, target_sides = self.sides(block, self.held), self.sides(block, self.wanted)
            if self.offset(block) and not target_sides and not here:
                yield f"the target has no bias for f that takes {self.offset(block):+g}"
        if self.kind == "weights":
            return
        if self.source_semantics.coupled != self.semantics.coupled:
            yield f"the {self.kind} of i and f cannot be told apart where i is 1 - f"
        for move in moves:
            if not move.terms:
                yield f"the source has no {self.kind} of {move.target}, which the target has"


def target_sizes(sizes: Sizes, target: Record) -> Sizes:
    """The sizes of the target: without a projection if its layout has none."""
    return sizes if target.projection else replace(sizes, projected=None)
