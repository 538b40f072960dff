"""The difference between two layouts as a list of moves, one for each block of the target.

A move is bit-exact or rounds once. If no move expresses a difference, the conversion is refused.

    torch.gru -> keras.gru          W_r ... d_n moved: no number changes
    haiku.gru -> torch.gru          W_z, R_z, b_z negated: z writes in Haiku and keeps in torch
    keras.lstm -> torch.lstm        b moved, d filled with zeros
    torch.lstm -> keras.lstm        b + d, rounded once
    tf1.basic_lstm -> torch.lstm    b moved, d_f filled with the forget bias
    torch.gru -> nnx.gru            d_n has no place: it must be zero, else this is refused
    haiku.gru -> torch.gru          the reset moves: R_n must be diagonal, so that R_n (r h) = r (R_n h)
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from stepnet.compiler.values.records import dataclass
from stepnet.layout.options import option
from stepnet.layout.places import ParameterBlock
from stepnet.layout.record import Record
from stepnet.layout.semantics import FIELDS, SYMMETRIC, Semantics, Setting
from stepnet.layout.sizes import Sizes

KINDS = ("weights", "gradient", "second_moment")
BIASES = ("b", "d")
UPDATE_GATE = {"gru": "z", "mgu": "f"}  # the gate that keeps the old memory or writes the new


@dataclass(frozen=True)
class Move:
    """Formula for a block (one parameter of one gate) of converted weights: a sum of signed blocks of the
    source and a constant.

    target: the block.
    terms: the blocks of the source, each with its sign, 1 or -1; empty to fill with the constant alone.
    constant: the number to add.

    >>> Move(ParameterBlock("b", "z"), ((ParameterBlock("b", "z"), 1), (ParameterBlock("d", "z"), 1)))
    b_z = b_z + d_z
    """

    target: ParameterBlock
    terms: tuple[tuple[ParameterBlock, int], ...] = ()
    constant: float = 0.0

    @property
    def kind(self) -> str:
        """Kind of this formula for a block of converted weights: "moved" for a copy, "negated" for a copy
        with the opposite sign, "summed", or "filled" with a constant.
        """
        if not self.terms:
            return "filled"
        if len(self.terms) > 1 or self.constant:
            return "summed"
        return "moved" if all(sign > 0 for _, sign in self.terms) else "negated"

    def __repr__(self) -> str:
        """The move as an equation, such as "b_z = b_z + d_z"."""
        texts = [f"{'+' if sign > 0 else '-'} {block}" for block, sign in self.terms]
        texts += [f"+ {self.constant:g}"] if self.constant or not texts else []
        return f"{self.target} = {' '.join(texts).removeprefix('+ ')}"


@dataclass(frozen=True)
class Demand:
    """Condition on numbers of the source without which a conversion is impossible, such as a zero bias.

    block, added: the condition is about the sum of these blocks.
    must_be: the required value: a number for all elements, "the identity", "diagonal", or "equal" to or
    "negative" of `other`.
    reason: the message, in which {} stands for the blocks that violate the condition.
    advice: an alternative for the user.
    """

    block: ParameterBlock
    must_be: str | float
    reason: str
    other: ParameterBlock | None = None
    added: tuple[ParameterBlock, ...] = ()
    advice: str = ""

    @property
    def what(self) -> str:
        """Text of the weights in a conversion's condition, such as "b_f + d_f", for the message."""
        return " + ".join(map(str, (self.block, *self.added)))

    @property
    def must(self) -> str:
        """Text of the value that a conversion's condition requires, such as "0" or "-W_f"."""
        if self.other is not None:
            return f"{'-' if self.must_be == 'negative' else ''}{self.other}"
        return self.must_be if isinstance(self.must_be, str) else f"{self.must_be:g}"


@dataclass(frozen=True)
class Differences:
    """Differences between the layouts of a source and a target of a conversion, and the formulas that bridge
    them.

    semantics: the semantics of the target.
    moves: the formulas that make the blocks (one parameter of one gate each) of the target.
    demands: the conditions on the numbers of the source.
    refusals: the reasons why there is no conversion; empty if there is one.
    """

    semantics: Semantics
    moves: tuple[Move, ...]
    demands: tuple[Demand, ...]
    refusals: tuple[str, ...]


def differences(
    source: Record,
    source_semantics: Semantics,
    source_blocks: Iterable[ParameterBlock],
    target: Record,
    stated: dict[str, Any],
    target_blocks: Iterable[ParameterBlock],
    kind: str = "weights",
) -> Differences:
    """Compares the layouts (arrangements of weights) of a source and a target of a conversion: returns the
    semantics of the target (the options of its equations, such as the place of the reset gate), the moves
    (formulas) that compute its blocks from the blocks of the source, the conditions that the numbers of the
    source have to meet, and the reasons that prevent the conversion.

    source_blocks, target_blocks: the blocks (one parameter of one gate each) that the two sides have. stated:
    the semantics that the user states for the target. kind: "weights"; "gradient" of weights, or a moment
    that is linear in it; its "second_moment".
    """
    semantics, refusals = target_semantics(source, source_semantics, target, stated, kind)
    planner = MovePlanner(
        source_semantics, semantics, frozenset(source_blocks), frozenset(target_blocks), target, kind
    )
    moves = tuple(planner.move(block) for block in sorted(planner.targets, key=ParameterBlock.order))
    used = {block for move in moves for block, _ in move.terms}
    demands = tuple(planner.demands(used))
    return Differences(semantics, moves, demands, (*refusals, *planner.missing_blocks(moves)))


# ---- the function ------------------------------------------------------------------------------------------


def target_semantics(
    source: Record, source_semantics: Semantics, target: Record, stated: dict[str, Any], kind: str
) -> tuple[Semantics, list[str]]:
    """Returns the semantics (settings of the cell's function) of the target of a conversion, equal to the
    source's as far as the target's layout (arrangement of weights) allows, and the reasons why the target
    cannot express the source's function.

    stated: the fields that the user sets for the target.
    kind: the numbers that are converted: "weights", "gradient" or "second_moment".
    """
    if source.cell != target.cell:
        return source_semantics, [
            f"the cell of {source.name} is {source.cell}, and that of {target.name} is {target.cell}"
        ]
    fixed = Semantics(target.cell)
    values: dict[str, Any] = dict(stated)
    refusals: list[str] = []
    for name in FIELDS[target.cell]:
        value = getattr(source_semantics, name)
        choice = target.semantics.get(name, getattr(fixed, name))
        if name in stated:
            choice = stated[name]
        elif isinstance(choice, Setting):
            choice = value if choice.allows(value) else fallback_value(name, choice)
        values[name] = choice
        if choice != value:
            reason = obstacle(name, value, choice, source_semantics, target, kind)
            refusals += [reason] if reason else []
    settings = target.settings()
    target.settled({name: value for name, value in values.items() if name in settings} | stated)
    by_setting: dict[str, set[Any]] = {}
    for name, setting in settings.items():
        by_setting.setdefault(setting.name, set()).add(values[name])
    for setting, choices in by_setting.items():
        if len(choices) > 1:
            refusals.append(f"{target.name} has one {setting} for {' and '.join(sorted(map(str, choices)))}")
    return Semantics(target.cell, **values), refusals


def fallback_value(name: str, setting: Setting) -> Any:
    """Returns a value for a field of `Semantics` that the target's layout (arrangement of weights) in a
    conversion cannot have as the source has it: the field's default if `setting` allows that, else the first
    value that it allows. The conversion is refused then, and the message shows the value. name: of the field.
    """
    usual = getattr(Semantics("gru"), name)
    values = list(setting.values or ())
    return usual if usual in values else values[0]


def obstacle(
    name: str, value: Any, target_value: Any, source_semantics: Semantics, target: Record, kind: str
) -> str:
    """Returns the reason why a difference in one field of `Semantics` prevents a conversion; "" if signs and
    biases of the target can express it.

    name, value, target_value: the field, and its values in the source and the target.
    kind: the numbers that are converted: "weights", "gradient" or "second_moment".
    """
    if name == "update" and source_semantics.gate_activation not in SYMMETRIC:
        activation = source_semantics.gate_activation
        return f"signs invert the sense of z only if s(-a) = 1 - s(a), which fails for {activation}"
    if name == "update" and source_semantics.cell == "mgu":
        return "the update gate also resets, and negating its weights would invert both"
    if name in ("update", "forget_bias"):
        return ""
    if (
        name == "coupled"
    ):  # then one of i and f is computed from the other, or their blocks must agree: see `demands`
        if source_semantics.gate_activation not in SYMMETRIC:
            activation = source_semantics.gate_activation
            return f"i is 1 - f on one side, and 1 - s(a) = s(-a) does not hold for {activation}"
        if source_semantics.coupled and source_semantics.forget_bias and not target.has_biases:
            takes = f"{-source_semantics.forget_bias:+g}"
            return f"i is 1 - f in the source, and the target has no bias for i that takes {takes}"
        return ""
    if name == "reset":  # then R_n has to be diagonal
        return (
            "" if kind == "weights" else f"the {kind} of R_n is another where the reset is {target_value} it"
        )
    values = f"{value or 'none'}, and {target.name} has {target_value or 'none'}"
    remedy = option("semantics", field=name, value="0", choice="0")
    unless = f", unless nothing ever reaches it: then say {remedy}" if name.endswith("clip") and value else ""
    return f"the source's {name} is {values}: these are different functions{unless}"


# ---- the blocks --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class MovePlanner:
    """Planner of the moves of a conversion (formulas that compute the target's blocks) from both sides. A
    block is one parameter of one gate.

    semantics: the semantics of the target. sources, targets: the blocks of each side. target: the target's
        layout.
    kind: "weights", "gradient" or "second_moment".
    """

    source_semantics: Semantics
    semantics: Semantics
    sources: frozenset[ParameterBlock]
    targets: frozenset[ParameterBlock]
    target: Record
    kind: str

    def move(self, block: ParameterBlock) -> Move:
        """Returns the move (a formula of blocks of the source) that computes a block (one parameter of one
        gate) of the target. If the source computes i as 1 - f, a block of i is that of f, negated; one that
        the source lacks is zero.
        """
        if block.parameter in BIASES:
            return self.bias(block)
        terms, constant = ((block, self.sign(block)),), 0.0
        if block.gate == "i" and self.source_semantics.coupled:
            terms = ((replace(block, gate="f"), -1),)
        return Move(block, tuple(term for term in terms if term[0] in self.sources), constant)

    def sign(self, block: ParameterBlock) -> int:
        """Returns -1 if the weights of a block (one parameter of one gate) have to be negated in a
        conversion, else 1. Weights of the update gate are negated if it keeps the old memory on one side and
        writes the new one on the other; second moments are squares and keep their sign.
        """
        is_negated = self.source_semantics.update != self.semantics.update and block.gate == UPDATE_GATE.get(
            self.source_semantics.cell
        )
        return -1 if is_negated and self.kind != "second_moment" else 1

    def biases_add_up(self, block: ParameterBlock) -> bool:
        """Tells if the source of a conversion uses the two biases, b and d, of a gate only as their sum, so
        that a conversion may merge them. block: a parameter of the gate. The candidate n of a GRU or MGU that
        resets after the product multiplies d by the gate.
        """
        return (
            self.source_semantics.cell not in UPDATE_GATE
            or block.gate != "n"
            or self.source_semantics.reset == "before"
        )

    @property
    def resets_differ(self) -> bool:
        """True if one side of the conversion resets before the recurrent product, and the other after it."""
        return self.source_semantics.reset != self.semantics.reset

    def biases_of(self, block: ParameterBlock, among: frozenset[ParameterBlock]) -> list[ParameterBlock]:
        """Returns the biases b and d, as blocks, of a block's gate, layer and direction, if in `among`."""
        both = (replace(block, parameter=parameter) for parameter in BIASES)
        return [bias_block for bias_block in both if bias_block in among]

    def offset(self, block: ParameterBlock) -> float:
        """Returns the constant that only the function of a conversion's source adds to the argument of a
        gate's activation: a forget bias, of f or of i computed from f.

        block: a parameter of the gate.
        """
        if self.source_semantics.cell != "lstm" or self.kind != "weights":
            return 0.0
        if (
            block.gate == "i" and self.source_semantics.coupled
        ):  # i is computed from f, whose sum includes the forget bias
            return self.source_semantics.forget_bias
        return self.source_semantics.forget_bias - self.semantics.forget_bias if block.gate == "f" else 0.0

    def bias(self, block: ParameterBlock) -> Move:
        """Returns the move (a formula of blocks of the source) that computes a bias, b or d, of a gate. If
        the gate has one bias in the target, this takes the sum of the source's biases and the constant
        `offset`. If it has two, each takes the source's of the same letter; if the source has one only, the
        target's `lone_bias` takes it. The offset is added to the bias that is not the `lone_bias`.

        If the source scales d_n by a reset gate, each bias of n is moved alone; if only the target does, b_n
        takes the sum, and d_n is zero. Gradients of biases in one sum are equal, so one of them is enough.
        """
        gate = "f" if block.gate == "i" and self.source_semantics.coupled else block.gate
        origin = replace(block, gate=gate)
        sign = -1 if gate != block.gate else self.sign(block)
        source_sides, target_sides = self.biases_of(origin, self.sources), self.biases_of(block, self.targets)
        if not self.biases_add_up(block):
            return Move(block, ((block, sign),) if block in self.sources else ())
        if block.gate == "n" and self.resets_differ:  # the target's reset bias is not part of a sum
            return Move(
                block,
                tuple((bias_block, sign) for bias_block in source_sides) if block.parameter == "b" else (),
            )
        offset = sign * self.offset(block)
        if len(target_sides) == 1:
            summed = source_sides[:1] if self.kind != "weights" else source_sides
            return Move(block, tuple((bias_block, sign) for bias_block in summed), offset)
        is_lone = block.parameter == self.target.lone_bias
        if len(source_sides) == 2:
            return Move(block, ((origin, sign),), 0.0 if is_lone else offset)
        if self.kind != "weights":  # each bias adds to the same sum, so each has its gradient
            return Move(block, tuple((bias_block, sign) for bias_block in source_sides))
        return Move(
            block,
            tuple((bias_block, sign) for bias_block in source_sides) if is_lone else (),
            0.0 if is_lone else offset,
        )

    def demands(self, used: set[ParameterBlock]) -> Iterator[Demand]:
        """Yields the conditions on blocks (gates' parameters) that have no place or another meaning in the
        target. Most must be zero, a projection P must be the identity, and a gradient of one of the two
        biases of a gate must equal that of the other.

        used: the blocks of the source from which the target is computed.
        """
        if self.resets_differ:
            yield from self.reset_demands()
        for block in sorted(self.sources - used, key=ParameterBlock.order):
            other = next(
                (bias_block for bias_block in self.biases_of(block, self.sources) if bias_block in used), None
            )
            if block.gate == "i" and self.semantics.coupled:
                yield from self.coupling_demands(block)
            elif block.parameter == "P" and self.kind == "weights":
                yield Demand(block, "the identity", "the target has no projection")
            elif self.kind != "weights" and block.parameter in BIASES and other and self.biases_add_up(block):
                yield Demand(
                    block, "equal", "both biases add to one sum, so their gradients are equal", other
                )
            elif self.kind == "weights" and block.parameter in BIASES and self.biases_add_up(block):
                yield from self.bias_demands(block)
            else:
                yield Demand(block, 0.0, "the target has no place for {}")

    def bias_demands(self, block: ParameterBlock) -> Iterator[Demand]:
        """Yields the condition on the sum of the biases of a gate for which the target has no bias: it must
        cancel the constant that only the source adds (`offset`). Yields it once, for the first of the biases.
        """
        first, *others = self.biases_of(block, self.sources)
        reason = "the target has no place for {}"
        if block.gate == "n" and self.resets_differ:
            reason = "the target has no bias of n that it does not reset"
        if block == first:
            yield Demand(block, 0.0 - self.offset(block), reason, added=tuple(others))

    def reset_demands(self) -> Iterator[Demand]:
        """Yields conditions on weights if one side resets before the recurrent product, the other after: R_n
        must be diagonal, and a bias d_n, which only the side that resets after it scales, must be zero.
        """
        value, target_reset = self.source_semantics.reset, self.semantics.reset
        how = f"the source resets {value} the recurrent product and {self.target.name} {target_reset} it"
        reason = f"{how}: R_n (r h) and r (R_n h) are equal for every r only if R_n is diagonal"
        advice = f"a target that resets {value} it asks for no such R_n"
        for block in sorted(self.sources, key=ParameterBlock.order):
            if (block.parameter, block.gate) == ("R", "n"):
                yield Demand(block, "diagonal", reason, advice=advice)
            if (block.parameter, block.gate, value) == ("d", "n", "after") and block in self.targets:
                yield Demand(block, 0.0, f"{self.target.name} resets no bias")

    def coupling_demands(self, block: ParameterBlock) -> Iterator[Demand]:
        """Yields conditions on a block (parameter) of the input gate if the target computes i as 1 - f: it
        must be the negative of that of f. Of biases only the sum of all, with the forget bias, must be zero.
        """
        reason, like = "i is 1 - f in the target", replace(block, gate="f")
        biases, forget_biases = self.biases_of(block, self.sources), self.biases_of(like, self.sources)
        if block.parameter not in BIASES or (
            len(biases) == len(forget_biases) == 1 and not self.source_semantics.forget_bias
        ):
            yield Demand(block, "negative", reason, like)
        elif block == biases[0]:  # only the sum of all biases matters
            yield Demand(
                block, 0.0 - self.source_semantics.forget_bias, reason, added=(*biases[1:], *forget_biases)
            )

    def missing_blocks(self, moves: tuple[Move, ...]) -> Iterator[str]:
        """Yields reasons to refuse a conversion: a forget bias that no bias of the target can take, and for
        gradients, blocks (gates' parameters) of the target that the source lacks, or the blocks of i and f if
        only one side computes i as 1 - f. moves: the formulas of the target's blocks.
        """
        for block in {replace(block, parameter="b", gate="f") for block in self.sources}:
            here, target_sides = self.biases_of(block, self.sources), self.biases_of(block, self.targets)
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
    """Returns the sizes of the converted layer: the source's, without a projection if `target` has none."""
    return sizes if target.projection else replace(sizes, projected=None)
