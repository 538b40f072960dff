"""Blocks that see of main memory what its order allows: in emulation, each through a view of its own."""

from typing import Any

import numpy as np
import pytest
from llvmlite import ir
from tolerance import assert_close

import stepnet as sn
from stepnet.compiler.targets.cuda import (
    DeviceCode,
    EmulatedDevice,
    KernelWriter,
    TensorSchedule,
    TensorStep,
    get,
    put,
)
from stepnet.errors import DeviceError
from tests.compiler.targets.cuda.tensor_loops import Case, backward_plan, cell_plan

Array = np.ndarray
I32, VOID, FOUR = ir.IntType(32), ir.VoidType(), ir.VectorType(ir.FloatType(), 4)
ARENA = 2**18


def handing(flag: str, waits: str) -> DeviceCode:
    """A kernel whose block 0 writes 3 into x, and then a flag, for which block 1 waits before it reads x into
    y[0]. Before, it has read x into y[1], so that it may be in its cache.
    """
    code = KernelWriter("handing", ["x", "flag", "y"])
    one, x, y = ir.Constant(I32, 1), code.pointer("x"), code.pointer("y")
    with code.when(code.icmp_signed("==", code.thread, code.number(0))):
        with code.when(code.icmp_signed("==", code.block_index, code.number(0))):
            code.write_element("float32", ir.Constant(ir.FloatType(), 3), x, code.number(0))
            words = {"release": [], "write_word": [one], "store": None}[flag]
            if words is None:
                code.write(one, code.pointer("flag"), 4)
            else:
                code.function_call(flag, VOID, [code.pointer("flag"), *words])
        with code.when(code.icmp_signed("==", code.block_index, code.number(1))):
            code.write_element("float32", code.read_element("float32", x, code.number(0)), y, code.number(1))

            def is_missing() -> ir.Value:
                """Waits a while; tells whether the flag is not there."""
                if waits == "acquire":
                    seen = code.function_call("acquire", I32, [code.pointer("flag")])
                else:
                    code.function_call("pause", VOID, [])
                    four = code.function_call("from_cache", FOUR, [code.pointer("flag")])
                    seen = code.bitcast(code.extract_element(four, ir.Constant(I32, 0)), I32)
                return code.icmp_signed("==", seen, ir.Constant(I32, 0))

            with code.loop_while(is_missing):
                pass
            code.write_element("float32", code.read_element("float32", x, code.number(0)), y, code.number(0))
    return code.finished(32, group=2, exchange="grid")


def handed(flag: str, waits: str, arena: int) -> set[float]:
    """The numbers that block 1 reads, for some orders of the threads."""
    found = set[float]()
    for seed in range(12):
        device = EmulatedDevice(seed, arena=arena)
        x, counter, y = (put(device, np.zeros(4, "f4")) for _ in range(3))
        device.launch(handing(flag, waits), 2, [x.address, counter.address, y.address])
        assert get(x).tolist() == [3, 0, 0, 0]
        found.add(float(get(y)[0]))
    return found


def test_what_is_released_and_acquired_is_seen() -> None:
    assert handed("release", "acquire", ARENA) == {3}


@pytest.mark.parametrize(("flag", "waits"), [("write_word", "acquire"), ("release", "from_cache")])
def test_an_order_that_is_missing_on_either_side_is_found(flag: str, waits: str) -> None:
    """The value is not written back yet, or the block has it as it was; without views both go unnoticed."""
    assert 0 in handed(flag, waits, ARENA)
    assert handed(flag, waits, 0) == {3}


def test_a_flag_that_is_a_plain_store_may_never_be_seen() -> None:
    with pytest.raises(DeviceError, match="handing: deadlock"):
        handed("store", "acquire", ARENA)


def test_an_arena_that_is_full_says_so() -> None:
    device = EmulatedDevice(arena=4096)
    with pytest.raises(MemoryError, match="an emulated arena of 4096 bytes is full"):
        device.allocate(4096)


# ---- the kernels of the target

PLANS = {"gru": lambda: cell_plan("gru", 24), "backward": lambda: backward_plan("lstm", 24)}


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("exchange", ["grid", "tagged", "cluster"])
def test_blocks_of_a_group_exchange_what_they_must(exchange: Any, plan: str) -> None:
    case = Case.drawn(TensorStep.of(PLANS[plan]()), [3, 2, 0, 4])
    schedule = TensorSchedule(2, exchange, chains=3)
    plain = case.run(schedule, 1)
    for seed in (1, 2):
        found = case.run(schedule, seed, arena=ARENA)
        for one, other in zip([*plain[0], *plain[1]], [*found[0], *found[1]], strict=True):
            assert one.tobytes() == other.tobytes()


def matrix(x: Any, s: Any, p: Any) -> Any:
    """A step whose memory is a matrix that decays, which chunks of steps run."""
    values = x["v"] + (x["in"] @ p).reshape(-1, 1, 16)
    s = x["f"][..., None, None] * s + x["k"][..., None] * values[..., None, :]
    return np.einsum("rhk,rhkv->rhv", x["q"], s), s


@pytest.mark.usefixtures("views")
def test_kernels_without_an_exchange_read_nothing_of_other_blocks(codes: list[DeviceCode]) -> None:
    """Of a matrix, whose chunks of steps and gradients many blocks compute, and of products in parts."""
    chance, shape = np.random.default_rng(0), (2, 70, 1, 16)
    x = {name: chance.normal(0, 0.3, shape).astype("f4") for name in "qkv"}
    x["f"] = chance.uniform(0.5, 1, shape[:-1]).astype("f4")
    x["in"] = chance.normal(0, 0.3, (2, 300, 40)).astype("f4")[:, :70]
    params, found = chance.normal(0, 0.1, (40, 16)).astype("f4"), list[list[Array]]()
    for engine in ("cuda-emulated", "interpret"):
        outputs, backward = sn.vjp(sn.RNN(matrix, params, memory=(1, 16, 16)))(x, engine=engine)
        gradients = backward(np.ones_like(outputs[0]), None)
        found.append(
            [np.asarray(each) for each in (outputs[0], gradients.params, *gradients.inputs.values())]
        )
    for ours, theirs in zip(*found, strict=True):
        assert_close(ours, theirs, 70, 4 * 160)
    assert "gradients of a matrix" in {code.name for code in codes}
