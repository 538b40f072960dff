"""Arrays of a device, and elementwise operations there: the bits are those of the CPU engine."""

import numpy as np
import pytest

from bench.gpu.pointwise import differing, groups, on_cpu, on_device, operands
from stepnet.compiler.targets.cpu import host_processor
from stepnet.compiler.targets.cuda import DeviceCode, EmulatedDevice, KernelWriter, empty, get, put

Array = np.ndarray
GROUPS = pytest.mark.parametrize("dtypes", groups(), ids=" ".join)
REMAINDERS = {"float32": "fmodf", "float64": "fmod"}


@pytest.mark.parametrize("shape", [(3, 4), (), (0, 5)])
@pytest.mark.parametrize("dtype", ["float32", "int64", "bool"])
def test_arrays_come_back(shape: tuple[int, ...], dtype: str):
    array = np.arange(np.prod(shape, dtype=int)).reshape(shape).astype(dtype)
    found = get(put(EmulatedDevice(), array))
    assert found.dtype == array.dtype
    assert np.array_equal(found, array)


def test_an_array_keeps_its_memory_and_frees_it():
    device = EmulatedDevice()
    array = put(device, np.arange(6.0))
    other = array.reshape((2, 3))
    del array
    assert get(other).tolist() == [[0, 1, 2], [3, 4, 5]]
    assert (other.size, other.nbytes, len(device.memory)) == (6, 48, 1)
    del other
    assert not device.memory


def test_copies_and_zeros():
    device = EmulatedDevice()
    array, other = put(device, np.arange(6.0)), empty(device, (3,), "float64")
    device.copy(other.address, array.address + 16, 24)
    device.clear(other.address + 8, 8)
    assert get(other).tolist() == [2, 0, 4]


@pytest.mark.parametrize("threads", [0, 33, 1056])
def test_blocks_have_whole_warps(threads: int):
    with pytest.raises(ValueError, match=f"sums: a block has 32, 64, ... or 1024 threads, not {threads}"):
        DeviceCode.of("sums", "", 0, threads)


def test_kernels_with_other_facts_have_other_keys():
    writer = KernelWriter("any", ["x"])
    first = writer.finished(32)
    others = (
        DeviceCode.of("any", first.text, 1, 64),
        DeviceCode.of("any", first.text, 1, 32, 8),
        DeviceCode.of("any", first.text, 1, 32, 0, 2),
        DeviceCode.of("any", first.text, 1, 32, 0, 1, "grid"),
    )
    assert len({code.key for code in (first, *others)}) == 5


def test_float16_on_every_processor():
    dtypes = ("float16",)
    group, arrays = groups()[dtypes], operands(dtypes)
    pairs = zip(group, on_device(EmulatedDevice(), group, arrays), on_cpu(group, arrays), strict=True)
    assert not [str(case) for case, ours, theirs in pairs if differing(ours, theirs).size]


@GROUPS
@pytest.mark.skipif(not host_processor().has_fused, reason="this processor has no fused multiply-add")
@pytest.mark.long(every=2)
def test_every_operation_has_the_bits_of_the_cpu_engine(dtypes: tuple[str, ...]):
    group, arrays = groups()[dtypes], operands(dtypes)
    pairs = zip(group, on_device(EmulatedDevice(), group, arrays), on_cpu(group, arrays), strict=True)
    for case, ours, theirs in pairs:
        wrong = differing(ours, theirs)
        assert not wrong.size, (
            f"{case}: {[array[wrong[0]] for array in arrays]}, {ours[wrong[0]]}, {theirs[wrong[0]]}"
        )


@pytest.mark.parametrize("dtype", REMAINDERS)
def test_remainders_are_exact(dtype: str):
    writer = KernelWriter("remainders", ["count", "x", "y", "z"])
    with writer.over_all(writer.word("count")) as i:
        pair = [writer.read_element(dtype, writer.pointer(name), i) for name in "xy"]
        result = writer.function_call(REMAINDERS[dtype], pair[0].type, pair)
        writer.write_element(dtype, result, writer.pointer("z"), i)
    device, (x, y) = EmulatedDevice(), operands((dtype, dtype))
    arrays = [put(device, x), put(device, y), empty(device, x.shape, dtype)]
    device.launch(writer.finished(128), 4, [x.size, *(array.address for array in arrays)])
    with np.errstate(all="ignore"):
        assert not differing(get(arrays[2]), np.fmod(x, y)).size
