"""The memory that a library's plans work in, beside that of the engine."""

from pathlib import Path

import numpy as np
from zoo import rnn_of, sequences

from stepnet.compiler.targets.cpu import LlvmEngine, available_processors
from stepnet.compiler.targets.cpu.library.workspaces import Contexts, WorkspaceOffsets
from stepnet.compiler.targets.cpu.running.workspace import BLOCK_BYTES, FAR_ROWS, WORD, block_rows
from tests.build.libraries import assert_as_in_python, library_of


def test_blocks_of_steps_are_as_long_as_the_engines(tmp_path: Path):
    """Also where so many parameters are read for each block that it has the most rows."""
    rows = list[int]()
    for inputs, hidden in ((8, 16), (1024, 704)):
        model, x = rnn_of("gru", inputs, hidden), sequences([300], inputs)
        running = model.read(x, None, None, None, False).running
        (plan,) = running.schedule_for("llvm").plans
        runner = LlvmEngine().compile_plan(plan).bind(list(map(np.asarray, running.params)))
        engine = runner.native.workspace(4, 1, 0, ends=False)
        rows.append(WorkspaceOffsets.of(runner.native.compiled, Contexts()).rows)
        assert engine.words[0, WORD["block_steps"]] == rows[-1] // 4
    compiled = runner.native.compiled
    assert rows[1] == FAR_ROWS * compiled.vector_bytes > BLOCK_BYTES // compiled.strides["block"]
    library = library_of(model, tmp_path, inputs=1024)
    assert_as_in_python(library, model(x, engine="llvm"), x)


def test_blocks_of_narrower_vectors_are_shorter():
    """Where parameters are far away: the products of fewer rows take as long as reading them."""
    model, x = rnn_of("gru", 1024, 704), sequences([3], 1024)
    (plan,) = model.read(x, None, None, None, False).running.schedule_for("llvm").plans
    rows = {
        processor.vector_bytes: block_rows(LlvmEngine(processor).compile_plan(plan).compiled)
        for processor in available_processors()
    }
    assert rows == {size: {64: 256, 32: 128, 16: 64}[size] for size in rows}
