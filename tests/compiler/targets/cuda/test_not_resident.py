"""Loops whose blocks do not all run at once, as where other programs have a part of the GPU."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tolerance import assert_close
from zoo import rnn_of

from stepnet.compiler import targets
from stepnet.compiler.targets import engine_named
from stepnet.compiler.targets.cuda import DeviceCode, EmulatedDevice, NotResidentError
from stepnet.errors import DeviceError

ENGINE = "crowded"
X = np.random.default_rng(0).normal(size=(3, 3, 4)).astype("f4")


class CrowdedDevice(EmulatedDevice):
    """An emulated GPU that runs fewer blocks at once than its facts say."""

    blocks, launched = 132, list[DeviceCode]()

    def launch(self, code: DeviceCode, blocks: int, words: Any) -> None:
        """Launches a kernel unless its blocks must run at once and cannot."""
        self.launched.append(code)
        must_wait = code.name.startswith("loop") and (code.group > 1 or not self.blocks)
        if must_wait and blocks > self.blocks:
            raise NotResidentError(f"{code.name} needs {blocks} blocks at once", self.blocks)
        super().launch(code, blocks, words)


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> CrowdedDevice:
    """The device of an engine of its own."""
    engine: Any = engine_named("cuda-emulated")
    made = CrowdedDevice(facts=engine.device.facts)
    made.launched = []
    crowded = replace(engine, device=made, name=ENGINE)
    monkeypatch.setitem(targets.ENGINES, ENGINE, lambda: crowded)  # type: ignore[arg-type]
    targets.engine.cache_clear()
    return made


@pytest.mark.parametrize("blocks", [8, 1])
def test_the_next_loop_runs_and_explain_says_why(blocks: int, device: CrowdedDevice) -> None:
    device.blocks, units = blocks, 256
    rnn = rnn_of("gru", 4, units)
    right = rnn(X.astype("f8"), engine="interpret")
    for _ in range(3):
        found = rnn(X, engine=ENGINE)
        for one, other in zip(found, right, strict=True):
            assert_close(one, other, 3, 4 * units, "float32")
    loops = [code for code in device.launched if code.name.startswith("loop")]
    assert loops[0].group > blocks >= loops[-1].group
    assert [code.name for code in loops].count(loops[0].name) == 1  # later calls know
    said = " ".join(rnn.explain(ENGINE, rows=3, steps=3).split())
    assert "16 blocks that exchange values by tagged for 8 sequences" in said
    assert "do not run at once on this GPU" in said


def test_a_loop_without_another_is_an_error(device: CrowdedDevice) -> None:
    device.blocks = 0
    with pytest.raises(DeviceError, match=r"loop.* needs \d+ blocks at once"):
        rnn_of("gru", 4, 24)(X, engine=ENGINE)
