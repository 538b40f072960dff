"""The tiles that products are computed in: how many rows and unit blocks side by side."""

from dataclasses import dataclass

from stepnet.engines.llvm.machine.target import Target


@dataclass(frozen=True)
class Tile:
    """The numbers of rows and of unit blocks that are computed side by side."""

    rows: int
    units: int


def tiles(target: Target, gates: int, blocks: int, vectors: int = 1, parts: int = 1) -> tuple[Tile, ...]:
    """The tiles for work of `gates` products: for many rows, for some, and for one.

    vectors: how many registers one vector of the work takes. parts: into how many vectors packed parameters
    are unpacked. Accumulators, one parameter per column and one spread number have to fit the registers.
    """
    registers = target.registers // vectors
    budget = registers * 3 // (3 + parts)

    def rows_for(columns: int) -> int:
        return max(1, min(8, (registers - (columns + 1) * parts) // columns))

    wide = min(blocks, max(1, 3 // gates))
    many = rows_for(wide * gates)
    sizes = [Tile(many, wide)]
    some = 1 << (many - 1).bit_length() - 1 if many > 1 else 1  # the power of two below
    if some > 1:
        sizes.append(Tile(some, min(blocks, max(1, budget // (some * gates)))))
    if many > 1:
        sizes.append(Tile(1, min(blocks, max(1, budget // 2 // gates))))
    return tuple(sizes)


@dataclass(frozen=True)
class Cover:
    """The tiles for rows that large tiles leave over: large ones more (or fewer), small ones, single ones."""

    large: int
    small: int
    single: int

    def counts(self, shapes: tuple[Tile, ...]) -> tuple[int, ...]:
        """How many tiles of each shape."""
        kinds = self.large, self.small, self.single
        return kinds if len(shapes) > 2 else kinds[::2][: len(shapes)]

    def cost(self, shapes: tuple[Tile, ...]) -> float:
        """What they cost, in rows of a large tile, as measured: a row in a small tile costs a tenth more. A
        row alone, for which all parameters are read, costs as much as three.
        """
        large, *rest = (shape.rows for shape in shapes)
        small = rest[0] if len(rest) > 1 else 0
        return self.large * large + self.small * small * 1.1 + self.single * 3


def cover(shapes: tuple[Tile, ...], left: int, after_others: bool) -> Cover:
    """The cheapest tiles for `left` rows; `after_others`: whether there is a large tile before, which they
    may replace.
    """
    large, small = shapes[0].rows, shapes[1].rows if len(shapes) > 2 else 0
    choices = [
        Cover(more, few, alone)
        for more in ((-1, 0, 1) if after_others else (0, 1))
        for few in (range(3) if small else (0,))
        for alone in ((0, 1) if len(shapes) > 1 else (0,))
        if more * large + few * small + alone >= left
    ]
    return min(choices, key=lambda choice: choice.cost(shapes))
