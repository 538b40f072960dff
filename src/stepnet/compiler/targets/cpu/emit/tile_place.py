"""The place of a register tile in its loop, and the parameters that it fetches for tiles that follow."""

from llvmlite import ir

from stepnet.compiler.targets.cpu.products.tile import Ahead
from stepnet.compiler.targets.cpu.products.tiles import AHEAD_ROWS, Tile
from stepnet.compiler.targets.cpu.writing.code import Code
from stepnet.compiler.values.records import dataclass


@dataclass(frozen=True)
class Following:
    """Unit block (a vector of features of the result) whose parameters are fetched by the tiles before it.

    part, parts: the number of a tile among those tiles, each of which fetches a part, and how many there are.
    section: the section of k of these parameters; None for all k.
    """

    block: ir.Value
    part: ir.Value
    parts: ir.Value
    section: ir.Value | None = None


@dataclass(frozen=True)
class TilePlace:
    """Place of a register tile, and the parameters that it fetches for the tiles that follow.

    row, block: its first row and unit block (a vector of features of the result).
    gate_group: the index of the group of gates (products per unit) that it computes, of `Tile.gate_groups`
        equal ones; None for all gates.
    following: the unit block whose parameters are fetched; None for none.
    fetched: the pointer to the list of addresses that the elementwise work reads and writes, which are
        fetched; None for none.
    section: the index of the section of k that it computes, of `Tile.sections` equal ones; None for all k.
    """

    row: ir.Value
    block: ir.Value
    gate_group: ir.Value | None = None
    following: Following | None = None
    fetched: ir.Value | None = None
    section: ir.Value | None = None


def fetched_ahead(
    code: Code, packed: ir.Value, unit_bytes: int, words: int, tile: Tile, place: TilePlace
) -> Ahead | None:
    """Computes the parameters that a tile fetches for the tiles that follow; None for none.

    packed: the pointer to the parameters of the first unit block (vector of features).
    unit_bytes, words: the bytes of the parameters of a unit block, and the packed words of a section of k.
    """
    following = place.following
    if following is None or tile.rows < AHEAD_ROWS:
        return None
    part, parts = following.part, following.parts
    if place.gate_group is not None:
        turns = code.number(tile.gate_groups)
        part, parts = code.add(code.mul(part, turns), place.gate_group), code.mul(parts, turns)
    section_bytes = tile.units * unit_bytes // tile.sections
    each = code.sdiv(code.number(section_bytes // words), parts)
    begin = code.at(packed, code.mul(following.block, code.number(unit_bytes)))
    if tile.sections > 1:
        assert following.section is not None
        begin = code.at(begin, code.mul(following.section, code.number(section_bytes)))
    return Ahead(code.at(begin, code.mul(part, code.mul(each, code.number(words)))), each)
