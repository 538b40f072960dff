"""The machine code of a loop of any kind: the table of the functions that write each kind."""

from collections.abc import Callable, Mapping
from typing import Any

from stepnet.compiler.targets.cpu.emit.copies import emit_copy, emit_gather
from stepnet.compiler.targets.cpu.emit.encode import emit_encode
from stepnet.compiler.targets.cpu.emit.fibers import emit_fibers
from stepnet.compiler.targets.cpu.emit.reductions import emit_reduction
from stepnet.compiler.targets.cpu.emit.scans import emit_scan
from stepnet.compiler.targets.cpu.emit.stage import StageCode
from stepnet.compiler.targets.cpu.emit.units import emit_units
from stepnet.compiler.targets.cpu.emit.word_reductions import emit_fold, emit_inner_reduction
from stepnet.compiler.targets.cpu.lower import loops

EMITTERS: Mapping[type[loops.Loop], Callable[[StageCode, Any], None]] = {
    loops.FiberLoop: emit_fibers,
    loops.UnitLoop: emit_units,
    loops.CopyLoop: emit_copy,
    loops.EncodeLoop: emit_encode,
    loops.ReduceLoop: emit_reduction,
    loops.ScanLoop: emit_scan,
    loops.GatherLoop: emit_gather,
    loops.FoldLoop: emit_fold,
    loops.InnerReduceLoop: emit_inner_reduction,
}


def emit(stage: StageCode, loop: loops.Loop) -> None:
    """Writes the machine code of one loop of a stage, by the function for the loop's type in `EMITTERS`."""
    EMITTERS[type(loop)](stage, loop)
