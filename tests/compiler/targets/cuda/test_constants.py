"""Constants computed from parameters on the emulated device, compared with the interpreter."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tolerance import assert_close

from stepnet.compiler.net.interpreter import evaluated
from stepnet.compiler.net.ir import Builder
from stepnet.compiler.net.types import CONST, Type
from stepnet.compiler.targets.cuda import CudaMemory, DeviceArray, DeviceCode, EmulatedDevice, get, put
from stepnet.compiler.targets.cuda.arrays.constants import CudaConstants, computed

RANDOM = np.random.default_rng(5)
A, B = (RANDOM.normal(size=(3, 4)).astype("f4") for _ in range(2))


class CountedDevice(EmulatedDevice):
    """The emulated device, which counts what is read from it and launched."""

    def __init__(self) -> None:
        super().__init__(seed=3)
        self.reads, self.launches = 0, 0

    def read(self, address: int, array: Any) -> None:
        self.reads += 1
        super().read(address, array)

    def launch(self, code: DeviceCode, blocks: int, words: Any) -> None:
        self.launches += 1
        super().launch(code, blocks, words)


def moved(net: Builder, a: int, b: int) -> list[int]:
    """Moves of one or two parameters."""
    turned = net.add("transpose", a, order=(1, 0))
    part = net.add("slice", turned, slices=((1, 4, 2), (0, 3, 1)))
    joined = net.add("concatenate", a, b, a, axis=-1)
    return [
        part,
        joined,
        net.add("reshape", joined, rank=2, shape=(6, 6)),
        net.add("concatenate", b, a, axis=-2),
    ]


def expressions(net: Builder, a: int, b: int) -> list[int]:
    """Expressions of elements, also of what was moved, and with a constant of the net."""
    two = net.constant(np.float32(2))
    turned = net.add("transpose", net.add("concatenate", a, b, axis=-2), order=(1, 0))
    return [
        net.add("add", a, b),
        net.add("multiply", net.add("exp", turned), two),
        net.add("negative", a),
        two,
    ]


@pytest.mark.parametrize("make", [moved, expressions], ids=lambda make: make.__name__)
def test_constants_are_computed_on_the_device_by_one_kernel(make: Callable[..., list[int]]) -> None:
    builder = Builder()
    parameters = [
        builder.input(Type(CONST, each.shape, "float32"), name)
        for name, each in zip("ab", (A, B), strict=True)
    ]
    wanted = make(builder, *parameters)
    net = builder.net(wanted)
    numbers = tuple(number for number in range(len(net.nodes)) if number not in parameters)
    device = CountedDevice()
    constants = CudaConstants(CudaMemory(device), net, numbers, frozenset(wanted))
    given = dict(zip(parameters, (put(device, A), put(device, B)), strict=True))
    found = constants(given)
    assert (device.reads, device.launches) == (0, 1)
    expected = evaluated(net, dict(zip(parameters, (A, B), strict=True)), numbers)
    for number in wanted:
        assert_close(get(found[number]), np.asarray(expected[number]), 4)
    assert all(found[number] is given[number] for number in parameters)  # where they lie


def test_other_constants_are_computed_by_the_interpreter() -> None:
    builder = Builder()
    a = builder.input(Type(CONST, (3, 4), "float32"), "a")
    product = builder.add("matmul", a, builder.add("transpose", a, order=(1, 0)))
    net, device = builder.net([product]), CountedDevice()
    numbers = tuple(number for number in range(len(net.nodes)) if number != a)
    constants = CudaConstants(CudaMemory(device), net, numbers, frozenset((product,)))
    found = constants({a: put(device, A)})
    assert (device.reads, device.launches) == (1, 0)
    assert_close(found[product], A @ A.T, 4)
    assert isinstance(found[a], DeviceArray)
    assert constants({a: A})[product].tobytes() == found[product].tobytes()  # as of parameters of the host


def test_sums_of_parameters_are_launched_ahead_of_what_reads_them() -> None:
    builder = Builder()
    a = builder.input(Type(CONST, (3, 4), "float32"), "a")
    total = builder.add("sum", builder.add("sum", a, axes=(-1,)), axes=(-1,))
    away = builder.add("subtract", a, builder.add("reshape", total, rank=0, shape=(1, 1)))
    net, device = builder.net([away, total]), CountedDevice()
    numbers = tuple(number for number in range(len(net.nodes)) if number != a)
    constants = CudaConstants(CudaMemory(device), net, numbers, frozenset((away, total)))
    found = constants({a: put(device, A)})
    assert (device.reads, device.launches) == (0, 3)
    assert_close(get(found[total]), A.astype("f8").sum(), 12)
    assert_close(get(found[away]), A - A.astype("f8").sum(), 12)
    wide = Builder()
    long = wide.input(Type(CONST, (9000,), "float32"), "a")
    whole = wide.net([wide.add("sum", long, axes=(-1,))])
    assert not CudaConstants(CudaMemory(device), whole, (1,), frozenset((1,))).has_elements


def test_a_sum_of_totals_is_computed_on_the_device() -> None:
    builder = Builder()
    inputs = [builder.input(Type(CONST, (3, 4), "float32"), name) for name in "ab"]
    node = builder.net([builder.add("add", *inputs)]).nodes[-1]
    device = CountedDevice()
    made = computed(CudaMemory(device), node, [put(device, A), put(device, B)])
    assert device.reads == 0
    assert_close(get(made), A + B, 4)
