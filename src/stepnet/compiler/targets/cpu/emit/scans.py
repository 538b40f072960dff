"""The machine code of scans (prefix sums and products) along a feature axis.

Scans that are independent of each other share a vector; those that do not fill one are computed one by one.
"""

from llvmlite import ir

from stepnet.compiler.targets.cpu.emit.reductions import combine, load_numbers
from stepnet.compiler.targets.cpu.emit.stage import StageCode
from stepnet.compiler.targets.cpu.lower.loops import ScanLoop
from stepnet.compiler.targets.cpu.writing.code import store_vector


def emit_scan(stage: StageCode, loop: ScanLoop) -> None:
    """Writes a scan (prefix sums or products along an axis of features) of each of this thread's rows."""
    with stage.own_rows() as row:
        scan_row(stage, loop, row)


def scan_row(stage: StageCode, loop: ScanLoop, row: ir.Value) -> None:
    """Writes the scan (prefix sums or products along the middle of three axes) of the value of one row, a
    sequence at one step. As many columns as a vector has elements are scanned at once, then the columns left
    over one by one.
    """
    code, width = stage.code, stage.width
    outer, along, inner = loop.shape
    vector_end = inner // width * width
    with code.loop(code.number(0), code.number(outer)) as index:
        first = code.mul(index, code.number(along * inner))
        with code.loop(code.number(0), code.number(vector_end), width) as column:
            scan(stage, loop, row, code.add(first, column), width)
        with code.loop(code.number(vector_end), code.number(inner)) as column:
            scan(stage, loop, row, code.add(first, column), 1)


def scan(stage: StageCode, loop: ScanLoop, row: ir.Value, first: ir.Value, width: int) -> None:
    """Writes `width` independent scans (prefix sums or products) of a row, one in each element of a vector.
    first: the element of the row's value at which they begin. Elements of one scan are `inner` elements
    apart, those of different scans are adjacent.
    """
    code = stage.code
    _, along, inner = loop.shape
    size = loop.source.itemsize
    source = code.at(stage.rows.at(code, loop.source.record, row), loop.source.offset + loop.start * size)
    targets = [code.at(stage.rows.at(code, target.record, row), target.offset) for target in loop.targets]

    def value(number: ir.Value) -> ir.Value:
        """Loads the numbers of the scans, which are contiguous, from element `number` of the source on."""
        return load_numbers(code, loop, code.at(source, code.mul(number, code.number(size))), width)

    def put(result: ir.Value, number: ir.Value) -> None:
        """Writes stores of results of a scan, from element `number` of each target field on."""
        for pointer, target in zip(targets, loop.targets, strict=True):
            address = code.at(pointer, code.mul(number, code.number(target.itemsize)))
            store_vector(code, target.dtype, result, address, target.itemsize)

    def iteration(index: ir.Value, previous: list[ir.Value]) -> list[ir.Value]:
        """Writes one round of a scan: computes and stores the results at an index from those before."""
        number = code.add(first, code.mul(index, code.number(inner)))
        total = combine(code, loop.operation, loop.targets[0].dtype, previous[0], value(number))
        put(total, number)
        return [total]

    initial = value(first)
    put(initial, first)
    code.carry(1, along, [initial], iteration)
