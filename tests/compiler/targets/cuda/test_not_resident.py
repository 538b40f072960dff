"""Loops whose blocks do not all run at once, as where other programs have a part of the GPU."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tolerance import assert_close
from zoo import rnn_of

import stepnet as sn
from stepnet.compiler import targets
from stepnet.compiler.targets import engine_named
from stepnet.compiler.targets.cuda import DeviceCode, EmulatedDevice, NotResidentError
from stepnet.compiler.targets.cuda.driver.facts import known_facts
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


def test_a_recorded_call_is_recorded_anew_when_its_loop_does_not_fit_any_more(device: CrowdedDevice) -> None:
    rnn = rnn_of("gru", 4, 256)
    for blocks in (132, 132, 132, 1, 1, 1):
        device.blocks, x = blocks, np.random.default_rng(blocks).normal(size=(3, 3, 4)).astype("f4")
        found, right = rnn(x, engine=ENGINE), rnn(x.astype("f8"), engine="interpret")
        for one, other in zip(found, right, strict=True):
            assert_close(one, other, 3, 4 * 256, "float32")
    groups = [code.group for code in device.launched if code.name.startswith("loop")]
    assert groups[-2:] == [1, 1]
    assert groups[:4] == groups[:1] * 4  # the fourth call tries the loop of the first three


def test_fewer_groups_of_the_same_loop_run_in_turn(device: CrowdedDevice) -> None:
    device.facts, device.blocks = replace(known_facts((8, 6)), multiprocessors=8), 4
    random = np.random.default_rng(1)
    weights, x = random.normal(0, 0.1, (256, 256)).astype("f4"), np.ones((40, 2, 256), "f4")
    rnn = sn.RNN(lambda x, h, p: (np.tanh(x + h @ p),) * 2, weights, memory=256)
    found, right = rnn(x, engine=ENGINE), rnn(x.astype("f8"), engine="interpret")
    for one, other in zip(found, right, strict=True):
        assert_close(one, other, 2, 256, "float32")
    first, second = (code for code in device.launched if code.name.startswith("loop"))
    assert first is second


@pytest.mark.parametrize("multiprocessors", [1, 2, 7, 16])
def test_loops_fit_on_a_part_of_a_gpu(multiprocessors: int, device: CrowdedDevice) -> None:
    """As an instance of a GPU that is divided is: by the facts of all of it, 7 clusters of 16 run at once."""
    device.facts = replace(device.facts, multiprocessors=multiprocessors)
    rnn, x = rnn_of("gru", 4, 256), np.ones((40, 2, 4), "f4")
    found, right = rnn(x, engine=ENGINE), rnn(x.astype("f8"), engine="interpret")
    for one, other in zip(found, right, strict=True):
        assert_close(one, other, 2, 4 * 256, "float32")
    loops = [code for code in device.launched if code.name.startswith("loop")]
    assert len(loops) <= 1  # none was refused
    assert all(loop.group <= multiprocessors for loop in loops)


def test_loops_that_share_one_multiprocessor_are_estimated(device: CrowdedDevice) -> None:
    device.facts = replace(known_facts((8, 6)), multiprocessors=1)
    memory = sn.cells.memory("mlstm", heads=3, key=128, value=16)
    rnn = sn.RNN(
        sn.cells.mlstm, memory=memory, inputs={"q": (3, 128), "k": (3, 128), "v": (3, 16), "i": 3, "f": 3}
    )
    assert "us predicted" in rnn.explain(ENGINE, rows=1, steps=1000)
