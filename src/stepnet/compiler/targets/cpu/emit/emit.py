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
from stepnet.compiler.targets.cpu.lower.loops import (
    CopyLoop,
    EncodeLoop,
    FiberLoop,
    FoldLoop,
    GatherLoop,
    InnerReduceLoop,
    Loop,
    ReduceLoop,
    ScanLoop,
    UnitLoop,
)

EMITTERS: Mapping[type[Loop], Callable[[StageCode, Any], None]] = {
    FiberLoop: emit_fibers,
    UnitLoop: emit_units,
    CopyLoop: emit_copy,
    EncodeLoop: emit_encode,
    ReduceLoop: emit_reduction,
    ScanLoop: emit_scan,
    GatherLoop: emit_gather,
    FoldLoop: emit_fold,
    InnerReduceLoop: emit_inner_reduction,
}


def emit(stage: StageCode, loop: Loop) -> None:
    """Writes the machine code of one loop of a stage, by the function for the loop's type in `EMITTERS`."""
    EMITTERS[type(loop)](stage, loop)
