"""The loop over groups of unit blocks (vectors of features), of which each thread computes a part.

    steps 0, 1, 2     a b c d | d c b a | a b c d      large parameters: d, then a are still cached

If parameters exceed the near caches, they hold those that were read last, so the next step goes through the
groups in the opposite order. Threads that share the steps then claim groups (`claims.py`).
"""

from collections.abc import Generator
from contextlib import contextmanager

from llvmlite import ir

from stepnet.compiler.targets.cpu.emit.claims import LOOPS, Claim
from stepnet.compiler.targets.cpu.emit.stage import StageCode
from stepnet.compiler.targets.cpu.lower.tiling import Tiling
from stepnet.compiler.targets.cpu.writing.code import I1, Code
from stepnet.compiler.values.records import dataclass


@dataclass(frozen=True)
class UnitGroup:
    """Group of unit blocks (vectors of features): from block `begin` to `end`.

    following: the first block of the group that is computed next; that of the last one for the last.
    """

    begin: ir.Value
    end: ir.Value
    following: ir.Value


@contextmanager
def unit_groups(
    stage: StageCode, tiling: Tiling, blocks: int, size: int, least: ir.Value
) -> Generator[UnitGroup]:
    """Context manager: writes a loop over this thread's groups of unit blocks (vectors of features); gives
    the group. The caller writes the body inside.

    blocks: the number of unit blocks. size: the blocks of a group that fill the tiles of any number of rows.
    least: of a group that fills those of the present rows, by which threads claim groups.
    """
    code, claims, one = stage.code, stage.claims, stage.code.number(1)
    turn = alternating_flag(code) if tiling.fetches_ahead else None
    if claims is not None and (turn is None or claims.loops == LOOPS):
        claims = None
    each = code.number(size) if claims is None else least

    def groups_of(thread: ir.Value) -> ir.Value:
        """Computes the number of groups in a thread's range of unit blocks."""
        first, last = stage.blocks_of(thread, blocks, tiling.grain)
        return code.sdiv(code.add(code.sub(last, first), code.sub(each, one)), each)

    def group(claim: Claim) -> UnitGroup:
        """Computes the unit blocks of a group in the order of this run."""
        first, last = stage.blocks_of(claim.owner, blocks, tiling.grain)
        index, following = claim.index, claim.following
        if turn is not None and tiling.is_large:
            final = code.sub(claim.count, one)
            index, following = (code.select(turn, code.sub(final, own), own) for own in (index, following))
        begin = code.add(first, code.mul(index, each))
        end = code.smaller(code.add(begin, each), last)
        return UnitGroup(begin, end, code.add(first, code.mul(following, each)))

    if claims is not None and turn is not None:
        helps = code.icmp_signed(">=", stage.rows.count, code.number(tiling.claimed_rows))
        with claims.each(turn, helps, groups_of) as claim:
            yield group(claim)
        return
    count = groups_of(stage.thread)
    with code.loop(code.number(0), count) as index:
        following = code.smaller(code.add(index, one), code.sub(count, one))
        yield group(Claim(stage.thread, index, following, count))


def alternating_flag(code: Code) -> ir.Value:
    """Writes a flag that is false, true, false, ... each time this code runs: loops alternate their direction
    by it.
    """
    with code.goto_entry_block():
        is_reversed = code.alloca(I1)
        code.store(ir.Constant(I1, 0), is_reversed)
    now = code.load(is_reversed)
    code.store(code.not_(now), is_reversed)
    return now
