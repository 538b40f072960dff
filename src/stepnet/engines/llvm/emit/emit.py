"""The machine code of a loop of any kind: the table of the functions that write each kind."""

from collections.abc import Callable, Mapping
from typing import Any

from stepnet.engines.llvm.emit.copies import emit_copy, emit_gather
from stepnet.engines.llvm.emit.encode import emit_encode
from stepnet.engines.llvm.emit.fibers import emit_fibers
from stepnet.engines.llvm.emit.reductions import emit_reduction
from stepnet.engines.llvm.emit.scans import emit_scan
from stepnet.engines.llvm.emit.stage import StageCode
from stepnet.engines.llvm.emit.units import emit_units
from stepnet.engines.llvm.emit.words import emit_fold, emit_words_reduction
from stepnet.engines.llvm.lower.loops import (
    CopyLoop,
    EncodeLoop,
    FiberLoop,
    FoldLoop,
    GatherLoop,
    Loop,
    ReduceLoop,
    ScanLoop,
    UnitLoop,
    WordsReduceLoop,
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
    WordsReduceLoop: emit_words_reduction,
}


def emit(stage: StageCode, loop: Loop) -> None:
    """Writes the code of one loop."""
    EMITTERS[type(loop)](stage, loop)
