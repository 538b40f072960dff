"""The facts about a gradient as text. The plans of the halves are `explain`'s."""

from collections.abc import Iterator, Sequence

from stepnet.engines import Order
from stepnet.engines.pairs import PairChoice, between
from stepnet.explain.costs import Cost, Held, sum_of
from stepnet.explain.expressions import amount
from stepnet.explain.plan import explain, wrapped
from stepnet.net.types import CONST, ROWS, STEPS, Extent, extent_text
from stepnet.rnn.gradient_explain import GradientExplanation, Sizes

NAMES: dict[Extent, str] = {STEPS: "per step", ROWS: "per sequence", CONST: "once"}


def text(facts: GradientExplanation, engine: Order) -> str:
    """The facts for people, and the plans of all halves."""
    blocks = [head(facts), saved_lines(facts), work_lines(facts), memory_lines(facts)]
    blocks += [] if facts.sizes is None else [size_lines(facts.sizes)]
    nets = between(engine)
    plans = [f"{half.title}:\n{half.by or explain(half.schedule, nets)}" for half in facts.halves]
    return "\n\n".join(["\n".join(lines) for lines in blocks] + plans)


def head(facts: GradientExplanation) -> list[str]:
    """What it is of, and how it runs."""
    size = "sqrt(steps)" if isinstance(facts.checkpoint, str) else facts.checkpoint
    kept = "none: values of every step are saved" if size is None else f"memories ahead of every {size} steps"
    return [
        f"gradients of {', '.join(facts.kinds) or 'nothing'}",
        f"  engine      {facts.engine or 'none of those asked for'}",
        f"  checkpoint  {kept}",
        *([f"  blocks      {'; '.join(dict.fromkeys(facts.blocks))}"] if facts.blocks else ()),
        *choice_lines(facts.choices),
    ]


def choice_lines(choices: Sequence[PairChoice]) -> Iterator[str]:
    """The engine of each recurrence, and the refusals of those before it."""
    for place, made in enumerate(choices, 1):
        name = f"recurrence {place}" if len(choices) > 1 else "recurrence"
        yield f"  {name:<11} {made.engine}{f': {made.pair.text}' if made.pair else ''}"
        for engine, reason in made.refusals.items():
            yield from wrapped(f"    {engine:<10}", f"refuses: {reason}")


def saved_lines(facts: GradientExplanation) -> list[str]:
    """What is saved."""
    where = "" if facts.checkpoint is None else ", of one piece at a time"
    lines = [f"saved: {sizes_text(sum_of(*({value.extent: value.bytes} for value in facts.saved)))}{where}"]
    width = max((len(value.name) for value in facts.saved), default=0)
    return lines + [
        f"  {value.name:<{width}}  {value.element:<10}  {amount(value.bytes, 'B'):>8} {name_of(value.extent)}"
        for value in facts.saved
    ]


def work_lines(facts: GradientExplanation) -> list[str]:
    """What each half does."""
    lines = ["work"]
    for half in facts.halves:
        lines.append(f"  {half.title}")
        for extent, cost in half.costs.items():
            lines.append(f"    {name_of(extent):<13} {cost_text(cost)}")
    return lines


def cost_text(cost: Cost) -> str:
    """A cost as the titles of stages have it."""
    parts = [amount(cost.flops, "flop")]
    parts += [f"{amount(cost.weights, 'B')} of weights"] if cost.weights else []
    parts += [f"{amount(cost.values, 'B')} of values"] if cost.values else []
    return ", ".join(parts)


def memory_lines(facts: GradientExplanation) -> list[str]:
    """What is held."""
    memory = facts.memory
    lines = ["memory beyond arguments and results"]
    between = sizes_text(memory.kept)
    if memory.piece is not None:
        ahead = f"{amount(memory.ahead, 'B')} per sequence and piece"
        between = ahead if not any(memory.kept.values()) else f"{ahead}, {between}"
    lines.append(f"  between forward and backward  {between}")
    if any(memory.most.values()):
        lines.append(f"  besides, in the backward pass {sizes_text(memory.most)}")
    if memory.piece is not None:
        lines.append(f"  besides, of one piece         {sizes_text(memory.piece)}")
    return lines


def size_lines(sizes: Sizes) -> list[str]:
    """The figures of a batch."""
    return [
        f"for {sizes.rows} sequences of {sizes.steps} steps",
        f"  forward   {amount(sizes.forward, 'flop')}",
        f"  backward  {amount(sizes.backward, 'flop')}",
        f"  memory    {amount(sizes.between, 'B')} between them, {amount(sizes.most, 'B')} at most",
    ]


def sizes_text(each: Held) -> str:
    """Bytes by extent."""
    shown = [f"{amount(count, 'B')} {name_of(extent)}" for extent, count in sorted_by_depth(each) if count]
    return ", ".join(shown) or "nothing"


def sorted_by_depth(each: Held) -> Sequence[tuple[Extent, int]]:
    """Entries, the deepest first."""
    return sorted(each.items(), key=lambda pair: -len(pair[0]))


def name_of(extent: Extent) -> str:
    """What there is one for each of."""
    return NAMES.get(extent, f"per entry of {extent_text(extent)}")
