"""The memory in which the sums of register tiles wait: for their epilogue, or for the next section of k.

a tile      cell 0: [sum of port 0][sum of port 1] ...   cell 1: ...     each sum a vector, in whole lines
"""

from collections.abc import Mapping, Sequence

from llvmlite import ir

from stepnet.compiler.targets.cpu.emit.cells import TileCell
from stepnet.compiler.targets.cpu.machine.records import LINE
from stepnet.compiler.targets.cpu.products.tile import Sums
from stepnet.compiler.targets.cpu.products.tiles import Tile
from stepnet.compiler.targets.cpu.writing.code import Code
from stepnet.compiler.values.records import dataclass


@dataclass(frozen=True)
class TileSums:
    """Memory for the sums of register tiles (rows x unit blocks, which are vectors of features).

    ports: the type of each sum of a cell, by the node that it computes, in the order of the sums in memory.
    sum_bytes, tile_bytes: the bytes of a sum, and of all sums of the largest tile.
    pointer: the memory of the first tile.
    """

    code: Code
    ports: Mapping[int, ir.Type]
    sum_bytes: int
    tile_bytes: int
    pointer: ir.Value

    @classmethod
    def of(
        cls, code: Code, ports: Mapping[int, ir.Type], vector_bytes: int, cells: int, tiles: int
    ) -> "TileSums":
        """Reserves memory for so many tiles of at most `cells` cells (each a row and a unit block).
        vector_bytes: the bytes of a sum.
        """
        sum_bytes = -(-vector_bytes // LINE) * LINE
        tile_bytes = cells * len(ports) * sum_bytes
        return cls(code, ports, sum_bytes, tile_bytes, code.stack_memory(tiles * tile_bytes, LINE))

    def tile(self, number: ir.Value) -> ir.Value:
        """Computes the pointer to the sums of a tile, by its number among those that there is memory for."""
        return self.code.at(self.pointer, self.code.mul(number, self.code.number(self.tile_bytes)))

    def turn(self, sums: ir.Value, ports: Sequence[int], gate_group: ir.Value) -> ir.Value:
        """Computes the pointer to the sums of a turn, in which a tile computes one of several equal groups of
        gates (products per unit). sums: the tile's. ports: those of the first group.
        """
        bytes_ = self.code.number(len(ports) * self.sum_bytes)
        return self.code.at(sums, self.code.mul(gate_group, bytes_))

    def store(self, cells: Sequence[TileCell], ports: Sequence[int], sums: ir.Value) -> None:
        """Writes stores of sums of a tile's cells. ports: their nodes. sums: those of the first cell."""
        for number, cell in enumerate(cells):
            for port in ports:
                self.code.write(cell.sums[port], self.place(sums, number, port), LINE)

    def initial(self, tile: Tile, ports: Sequence[int], sums: ir.Value) -> Sums | None:
        """Writes loads of the sums [row][unit block][gate] over the sections of k before, as `store` left
        them; None if the tile computes all k at once.
        """
        if tile.sections == 1:
            return None
        cells = [[unit * tile.rows + row for unit in range(tile.units)] for row in range(tile.rows)]
        return [[[self.read(sums, number, port) for port in ports] for number in row] for row in cells]

    def clear(self, sums: ir.Value) -> None:
        """Writes code that sets the sums of a tile to zeros."""
        self.code.zero_bytes(sums, self.tile_bytes)

    def cell(self, number: ir.Value, sums: ir.Value) -> dict[int, ir.Value]:
        """Writes loads of all sums, by node, of cell `number` of the tile whose sums are at `sums`."""
        bytes_ = self.code.number(len(self.ports) * self.sum_bytes)
        own = self.code.at(sums, self.code.mul(number, bytes_))
        return {port: self.read(own, 0, port) for port in self.ports}

    def read(self, sums: ir.Value, number: int, port: int) -> ir.Value:
        """Writes a load of one sum of the cell with a number, from the pointer to a tile's sums."""
        return self.code.read(self.ports[port], self.place(sums, number, port), LINE)

    def place(self, sums: ir.Value, number: int, port: int) -> ir.Value:
        """Computes the pointer to one sum of the cell with a number, from that to a tile's sums."""
        index = number * len(self.ports) + list(self.ports).index(port)
        return self.code.at(sums, index * self.sum_bytes)
