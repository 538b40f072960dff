"""The waves of machine code that calls run, as tests see them."""

from typing import Any

import pytest

from stepnet.compiler.targets.cpu.running.call_block import CallBlock
from stepnet.compiler.targets.cpu.running.prepared_tasks import PreparedTasks


@pytest.fixture
def tasks_of_waves(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of tasks of each wave of machine code that the test runs, in turn."""
    seen, run, run_block = list[int](), PreparedTasks.__call__, CallBlock.run

    def counted(self: PreparedTasks) -> None:
        seen.append(len(self.tasks))
        run(self)

    def counted_block(self: CallBlock, arrays: list[Any]) -> bool:
        seen.extend(1 if turn.group is None else turn.group.count for turn in self.turns)
        return run_block(self, arrays)

    monkeypatch.setattr(PreparedTasks, "__call__", counted)
    monkeypatch.setattr(CallBlock, "run", counted_block)
    return seen
