"""The machine code of copies within records, and of gathers of table rows. Each row is done by one thread."""

from dataclasses import replace

from llvmlite import ir

from stepnet.compiler.targets.cpu.emit.stage import StageCode
from stepnet.compiler.targets.cpu.lower.loops import CopyLoop, GatherLoop, IndexedLoad, Operand
from stepnet.compiler.targets.cpu.writing.code import I32, I64, store_vector


def emit_copy(stage: StageCode, loop: CopyLoop) -> None:
    """Writes code that copies a value of each row (one sequence at one step) to another place in its record
    (the memory with all values of the row).

    The destination may be a part of a field, followed by other features. So the remainder that does not fill
    a vector is stored number by number.
    """
    code, width = stage.code, stage.width
    itemsize = loop.target.itemsize
    vectors, remainder = divmod(loop.size, width)
    with stage.own_rows() as row:
        record = stage.rows.at(code, loop.target.record, row)
        base = code.at(record, loop.target.offset + loop.start * itemsize)
        with code.loop(code.number(0), code.number(vectors)) as block:
            value = stage.operand(loop.source, row, block, {})
            pointer = code.at(base, code.mul(block, code.number(width * itemsize)))
            store_vector(code, loop.target.dtype, value, pointer, itemsize)
        if remainder:
            value = stage.operand(loop.source, row, code.number(vectors), {})
            for element in range(remainder):
                number = code.extract_element(value, ir.Constant(I32, element))
                pointer = code.at(base, (vectors * width + element) * itemsize)
                store_vector(code, loop.target.dtype, number, pointer, itemsize)


def emit_gather(stage: StageCode, loop: GatherLoop) -> None:
    """Writes code that copies, for each sequence of the batch, rows of a parameter table at computed indices
    to a field, the place of a value in the sequence's memory.

    An index out of bounds sets the status word, for an error after the call, and reads row 0. Negative
    indices count from the end.
    """
    code = stage.code
    target = loop.targets[0]
    row_bytes = loop.row_size * target.itemsize
    with stage.own_rows() as row, code.loop(code.number(0), code.number(loop.indices)) as position:
        index = loaded_index(stage, loop.index, row, position)
        from_end = code.icmp_signed("<", index, code.number(0))
        wrapped = code.select(from_end, code.add(index, code.number(loop.count)), index)
        fits = code.icmp_unsigned("<", wrapped, code.number(loop.count))
        with code.when(code.not_(fits)):
            code.write(code.number(1), stage.status, 8)
        safe = code.select(fits, wrapped, code.number(0))
        source = code.at(code.at(stage.constants, loop.table), code.mul(safe, code.number(row_bytes)))
        for field in loop.targets:
            base = code.at(stage.rows.at(code, field.record, row), field.offset)
            code.copy_bytes(code.at(base, code.mul(position, code.number(row_bytes))), source, row_bytes)


def loaded_index(stage: StageCode, operand: Operand, row: ir.Value, position: ir.Value) -> ir.Value:
    """Writes a load of one of the indices by which a gather takes rows of a table, as a 64-bit integer.

    position: the position of the index in the operand. It is loaded alone, although a table through which the
        operand is read may have an entry for a full vector of positions.
    """
    code = stage.code
    narrow = replace(stage, width=1)
    if isinstance(operand, IndexedLoad):
        block = code.sdiv(position, code.number(stage.width)) if operand.per != "element" else position
        base = code.at(stage.rows.at(code, operand.field.record, row), operand.field.offset)
        value = narrow.through_table(operand, base, block)
    else:
        value = narrow.operand(operand, row, position, {})
    return value if value.type == I64 else code.sext(value, I64)
