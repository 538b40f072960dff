"""Kernels as PTX, and as machine code by NVIDIA's assembler, where that is installed."""

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from constants import Constants
from llvmlite import ir

from bench.gpu.pointwise import groups, kernel
from stepnet.compiler.disk import store
from stepnet.compiler.targets.cuda import DeviceCode, KernelWriter, assembled, assembler, ptxas, translation
from stepnet.compiler.targets.cuda.ptx import FOUND, translated
from stepnet.errors import LibraryError

CAPABILITIES = (8, 0), (8, 9), (9, 0), (10, 0)
with_ptxas = pytest.mark.skipif(ptxas() is None, reason="ptxas is not installed")
F32, I32, VOID = ir.FloatType(), ir.IntType(32), ir.VoidType()


def sums(**options: Any) -> DeviceCode:
    """A kernel that reads and writes main and shared memory, multiplies and adds."""
    writer = KernelWriter("sums of products", ["x", "y", "count"])
    with writer.over_all(writer.word("count")) as i:
        x = writer.read_element("float32", writer.pointer("x"), i)
        writer.write_element("float32", writer.fadd(writer.fmul(x, x), x), writer.shared(0), writer.thread)
        writer.barrier()
        x = writer.read_element("float32", writer.shared(4), writer.thread)
        writer.write_element("float32", writer.fused(x, x, x), writer.pointer("y"), i)
    return writer.finished(64, shared=260, **options)


def every_function() -> DeviceCode:
    """A kernel that calls each function of the device."""
    writer = KernelWriter("all functions", ["x"])
    x, lanes = writer.pointer("x"), ir.Constant(I32, 3)
    quad, four = ir.LiteralStructType([F32] * 4), ir.VectorType(F32, 4)
    value = writer.read_element("float32", x, writer.thread)

    def call(name: str, result: ir.Type, *arguments: ir.Value) -> ir.Value:
        return writer.function_call(name, result, arguments)

    for name in ("tf32", "exp2", "reciprocal", "root"):
        value = call(name, F32, value)
    value = call("quotient", F32, value, value)
    value = call("fmodf", F32, call("pack", F32, value, value), value)
    value = call("shuffle_down_float32", F32, value, lanes)
    wide = call("fmod", ir.DoubleType(), *[writer.fpext(value, ir.DoubleType())] * 2)
    value = writer.fptrunc(call("shuffle_down_float64", ir.DoubleType(), wide, lanes), F32)
    for depth in (8, 16):
        value = writer.extract_value(call(f"mma{depth}", quad, *[value] * 10), 2)
    call("write_tagged", VOID, x, value, lanes)
    value = writer.extract_value(call("read_tagged", quad, x), 1)
    call("pause", VOID)
    call("release", VOID, x)
    call("record_error", VOID, x, *[writer.zext(call("acquire", I32, x), ir.IntType(64))] * 3)
    call("warp_barrier", VOID)
    call("write_to", VOID, lanes, lanes, writer.spread(value, 4))
    call("arrive", VOID)
    call("wait", VOID)
    writer.write(call("from_cache", four, x), writer.at(x, 16), 16)
    return writer.finished(32, shared=64, group=2, exchange="cluster")


def test_memory_is_addressed_by_its_kind():
    text = translated(sums())
    assert re.search(r"ld\.global\.[bf]32", text)
    assert re.search(r"st\.shared\.[bf]32", text)
    assert not re.search(r"\b(ld|st)\.(v\d\.)?[bfu]\d", text)  # without a kind, it takes longer


def test_products_and_sums_are_rounded_apart_unless_they_are_fused():
    text = translated(sums())
    assert [text.count(name) for name in ("mul.rn.f32", "add.rn.f32", "fma.rn.f32")] == [1, 1, 1]


@pytest.mark.parametrize(
    ("capability", "processor"),
    [((8, 0), "sm_80"), ((8, 9), "sm_80"), ((9, 0), "sm_90a"), ((10, 0), "sm_90"), ((12, 1), "sm_90")],
)
def test_code_is_for_the_capability_of_the_gpu(capability: tuple[int, int], processor: str):
    text = translated(sums(), capability)
    assert f".target {processor}\n" in text
    assert ".version 8.0\n" in text
    assert re.search(r"\.reqntid 64(, 1, 1)?\n", text)


def test_clusters_need_capability_9():
    code = sums(exchange="cluster", group=4)
    assert ".reqnctapercluster 4" in translated(code)
    with pytest.raises(LibraryError, match=r"'sums of products' runs in clusters .* capability 8\.6 lacks"):
        translated(code, (8, 6))


def test_ptx_is_kept_on_disk(monkeypatch: pytest.MonkeyPatch, tmp_path: Any):
    monkeypatch.setenv("STEPNET_CACHE", "1")
    monkeypatch.setenv("STEPNET_CACHE_DIR", str(tmp_path / "cache"))
    FOUND.clear()
    first, before = translated(sums()), store.COUNTS["hits"]
    assert list((tmp_path / "cache").glob("*.ptx"))
    FOUND.clear()
    assert translated(sums()) == first
    assert store.COUNTS["hits"] == before + 1


def test_llvm_without_nvidias_gpus_is_refused():
    with pytest.raises(LibraryError, match=r"was built without LLVM's code generator for NVIDIA's GPUs \("):
        translation.code_generator("sm_80", "nowhere-nvidia-cuda")


@with_ptxas
@pytest.mark.parametrize("capability", CAPABILITIES)
def test_ptxas_takes_it_and_says_what_it_needs(capability: tuple[int, int]):
    found = assembled(sums(), capability)
    assert found.cubin[:4] == b"\x7fELF"
    assert (found.spilled, found.stack) == (0, 0)
    assert 8 <= found.registers <= 40


@pytest.fixture
def instead_of_ptxas(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any, constants: Constants
) -> Iterator[Callable[[str | None], None]]:
    """Puts a script in the place of the assembler, in one file; None for one that does not run."""
    folder = tmp_path / "programs"
    folder.mkdir()

    def put(script: str | None) -> None:
        """Writes the script, and forgets the assembler that was found."""
        file = folder / "ptxas"
        file.write_text("#!/nowhere/sh" if script is None else f"#!/bin/sh\n{script}\n")
        file.chmod(0o755)
        monkeypatch.setenv("PATH", f"{folder}:/bin:/usr/bin")
        constants(assembler, PACKAGE="no_such_package")
        ptxas.cache_clear()
        assembler.version_of.cache_clear()

    yield put
    ptxas.cache_clear()
    assembler.version_of.cache_clear()


@with_ptxas
def test_what_was_assembled_is_kept_on_disk_until_the_assembler_changes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any, instead_of_ptxas: Callable[[str | None], None]
):
    monkeypatch.setenv("STEPNET_CACHE", "1")
    monkeypatch.setenv("STEPNET_CACHE_DIR", str(tmp_path / "cache"))
    found, before = assembled(sums()), store.COUNTS["hits"]
    kept = {*(tmp_path / "cache").iterdir()}
    assert assembled(sums()) == found
    assert store.COUNTS["hits"] == before + 1
    version, program = tmp_path / "version", ptxas()
    for count, number in enumerate(("release 1", "release 2", "release 1")):
        version.write_text(number)  # behind a script that stays as it is
        instead_of_ptxas(f'[ "$1" = --version ] && exec cat {version}; exec {program} "$@"')
        assert assembled(sums()) == found
        assert len({*(tmp_path / "cache").iterdir()} - kept) == min(count + 1, 2)


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("", r"ptxas refuses the kernel .*: $"),
        ("printf '\\377 is no text' >&2; exit 3", "ptxas refuses the kernel .* is no text$"),
        (None, "ptxas, which has the registers of kernels, does not run: .*No such file"),
    ],
)
def test_an_assembler_that_does_not_do_its_work_is_an_error(
    script: str | None, said: str, instead_of_ptxas: Callable[[str | None], None]
):
    """It may write nothing, say what is no text, or not be a program."""
    instead_of_ptxas(script)
    with pytest.raises(LibraryError, match=said):
        assembled(sums())


@with_ptxas
def test_ptxas_takes_every_function():
    assert assembled(every_function()).spilled == 0


@with_ptxas
@pytest.mark.long(every=4)
@pytest.mark.parametrize("capability", CAPABILITIES[:3:2])
@pytest.mark.parametrize("dtypes", groups(), ids=" ".join)
def test_ptxas_takes_every_operation(dtypes: tuple[str, ...], capability: tuple[int, int]):
    assert assembled(kernel("pointwise", groups()[dtypes]), capability).spilled == 0


@with_ptxas
def test_what_ptxas_refuses():
    text = 'define void @"kernel"() { call void asm sideeffect "nonsense;", ""() ret void }'
    with pytest.raises(LibraryError, match=r"ptxas refuses the kernel 'any': (.*\n)*.*nonsense"):
        assembled(DeviceCode.of("any", text, 0, 32))


def test_without_ptxas(monkeypatch: pytest.MonkeyPatch, constants: Constants):
    monkeypatch.setenv("PATH", "")
    constants(assembler, PACKAGE="no_such_package")
    ptxas.cache_clear()
    with pytest.raises(LibraryError, match=r"ptxas is not installed.*pip install nvidia-cuda-nvcc"):
        assembled(sums())
    ptxas.cache_clear()
