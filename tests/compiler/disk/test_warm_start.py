"""Processes that load what another one compiled: the same bits, without LLVM. What is spoilt is made again.

What a process runs and prints is tests/processes/cached.py.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from constants import Constants
from planned import CPU
from zoo import rnn_of

import stepnet as sn
from stepnet.compiler.disk import folder, overview, sources, store
from stepnet.compiler.disk.data import NotDataError, Serializer
from stepnet.compiler.disk.settings import settings
from stepnet.compiler.net import STEPS, Builder, Net, Type
from stepnet.compiler.plan import Schedule
from stepnet.compiler.plan.stored_schedule import MOST_BYTES, StoredSchedule, key_of, key_under
from stepnet.compiler.targets.cpu import (
    LlvmEngine,
    available_processors,
    host_processor,
    store_rates,
    stored_rates,
    table_machine,
)
from stepnet.compiler.targets.cpu.compile.stored_plan import PLAN
from stepnet.compiler.targets.cpu.machine import image, processor, stored_code
from stepnet.compiler.targets.cuda import LOOPS, loop_of
from stepnet.model import program
from tests.compiler.targets.cuda.tensor_loops import DEVICE, cell_plan
from tests.processes.cached import MODELS

pytestmark = [
    pytest.mark.skipif(not folder.HAS_MODES, reason="this system has no such permissions"),
    pytest.mark.skipif(sys.platform != "linux", reason="elsewhere LLVM loads what is stored"),
]

SCRIPT = Path(__file__).parents[2] / "processes" / "cached.py"


def started(
    cache: Path, *names: str, limit: int | None = None, cpu: str | None = None
) -> "subprocess.Popen[str]":
    """A process that runs models with a cache. limit: the bytes of the largest file that it may write. cpu:
    the processor that it compiles for.
    """
    variables = {**os.environ, "STEPNET_CACHE": "1", "STEPNET_CACHE_DIR": str(cache)}
    variables |= {} if cpu is None else {processor.VARIABLE: cpu}

    def limited() -> None:
        if limit is not None:
            import resource

            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    return subprocess.Popen(
        [sys.executable, "-X", "faulthandler", str(SCRIPT), *names],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=variables,
        preexec_fn=limited,
    )


def ended(process: "subprocess.Popen[str]") -> dict[str, Any]:
    """The output of a process that has ended."""
    said, errors = process.communicate(timeout=240)
    assert process.returncode == 0, said + errors
    return json.loads(said)


def ran(cache: Path, *names: str, limit: int | None = None, cpu: str | None = None) -> dict[str, Any]:
    """The output of a process that runs models with a cache."""
    return ended(started(cache, *names, limit=limit, cpu=cpu))


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A cache in which all models are compiled, and what the process said that compiled them."""
    cache = tmp_path_factory.mktemp("compiled") / "cache"
    return cache, ran(cache, *MODELS)


def copied(cache: Path, to: Path) -> Path:
    """A copy of a cache."""
    to.mkdir(0o700)
    for file in cache.iterdir():
        (to / file.name).write_bytes(file.read_bytes())
        (to / file.name).chmod(0o600)
    return to


def test_what_is_loaded_gives_the_same_bits_and_compiles_nothing(
    compiled: tuple[Path, dict[str, Any]],
) -> None:
    cache, cold = compiled
    assert cold["llvm"]
    assert cold["counts"]["stored"] == len(list(cache.iterdir())) > 20
    warm = ran(cache, *MODELS)
    assert warm["digests"] == cold["digests"]
    assert not warm["llvm"], "LLVM's library is not even loaded"
    assert warm["counts"].keys() == {"hits"}


def test_without_a_cache_the_bits_are_the_same(compiled: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    none = ran(tmp_path / ("x" * 300), "stack", "gradient")
    assert none["llvm"]
    assert none["counts"].keys() == {"misses", "failed"}
    assert none["digests"].items() <= compiled[1]["digests"].items()


def test_two_processes_store_the_same_bytes(compiled: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    """The stored bytes hold no address of a process: addresses differ from process to process."""
    cache, _ = compiled
    ran(tmp_path / "cache", *MODELS)
    names = {file.name for file in cache.iterdir()}
    assert {file.name for file in (tmp_path / "cache").iterdir()} == names
    for name in names:
        one, other = ((place / name).read_bytes() for place in (cache, tmp_path / "cache"))
        assert one[:8] + one[16:] == other[:8] + other[16:], name


def flipped(data: bytes) -> bytes:
    """Data with one bit changed in the midst of its machine code, or of what else it holds."""
    place = len(data) * 2 // 3
    return data[:place] + bytes([data[place] ^ 16]) + data[place + 1 :]


SPOILT: dict[str, Callable[[bytes], bytes]] = {
    "a bit": flipped,
    "the end": lambda data: data[:-100],
    "all": lambda data: bytes(len(data)),
}


@pytest.mark.parametrize("spoil", SPOILT.values(), ids=SPOILT)
def test_what_is_spoilt_is_compiled_again(
    compiled: tuple[Path, dict[str, Any]], tmp_path: Path, spoil: Callable[[bytes], bytes]
) -> None:
    cache, cold = compiled
    own = copied(cache, tmp_path / "cache")
    for file in own.iterdir():
        file.write_bytes(spoil(file.read_bytes()))
    again = ran(own, "gru")
    assert again["digests"].items() <= cold["digests"].items()
    assert again["counts"]["rejected"] >= again["counts"]["stored"] == 6
    assert "hits" not in again["counts"]
    assert ran(own, "gru")["counts"] == {"hits": 5}, "it was mended"


def test_a_cache_that_others_can_write_to_is_not_read(
    compiled: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    cache, cold = compiled
    own = copied(cache, tmp_path / "cache")
    own.chmod(0o777)
    there = ran(own, "gru")
    assert there["digests"].items() <= cold["digests"].items()
    assert there["counts"].keys() == {"misses", "failed"}


def test_a_disk_that_is_full(compiled: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    """Files end after 8 KB: small entries are stored, and large ones leave nothing behind."""
    full = ran(tmp_path / "cache", "stack", limit=8000)
    assert full["digests"].items() <= compiled[1]["digests"].items()
    assert full["counts"]["failed"] == 3, "the plans of two layers, and the schedule"
    names = [file.name for file in (tmp_path / "cache").iterdir()]
    assert len(names) == full["counts"]["stored"] == 5
    assert not [name for name in names if "new" in name]


def test_four_processes_at_once(compiled: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    said = [ended(each) for each in [started(cache, "gru", "nested") for _ in range(4)]]
    for each in said:
        assert each["digests"].items() <= compiled[1]["digests"].items()
        assert "rejected" not in each["counts"]
        assert "failed" not in each["counts"]
    assert not [file.name for file in cache.iterdir() if "new" in file.name]
    assert ran(cache, "gru", "nested")["counts"].keys() == {"hits"}


def test_a_child_of_a_fork_uses_the_cache_too(compiled: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    cache, cold = compiled
    forked = ran(cache, "gru", "threads", "stack", "fork")
    assert forked["digests"].items() <= cold["digests"].items()
    assert not forked["llvm"]
    forked = ran(tmp_path / "cache", "gru", "stack", "fork")
    assert forked["digests"].items() <= cold["digests"].items()
    assert ran(tmp_path / "cache", "gru", "stack")["counts"].keys() == {"hits"}


# ---- keys --------------------------------------------------------------------------------------------------


def plan_of(reverse: bool = False) -> Any:
    """The plan of a GRU."""
    return rnn_of("gru", 6, 5, reverse=reverse).schedule.single_plan


def test_each_processor_has_a_key_of_its_own() -> None:
    plan = plan_of()
    keys = {LlvmEngine(each).key(plan) for each in available_processors()}
    assert len(keys) == len(available_processors())
    host = host_processor()
    other = processor.Processor(
        host.name, host.cpu, host.features + ",-avx512f", host.vector_bytes, host.registers
    )
    assert LlvmEngine(other).key(plan) not in keys
    assert LlvmEngine(host).key(plan_of(reverse=True)) in keys, "both directions share their code"


def test_each_chosen_processor_has_entries_of_its_own(tmp_path: Path) -> None:
    if len(processor.supported_processors()) < 2:
        pytest.skip("this processor runs code of one kind alone")
    first, other, again = (
        ran(tmp_path / "cache", "gru", cpu=cpu) for cpu in ("generic", "native", "generic")
    )
    assert first["counts"]["stored"] > other["counts"]["stored"] > 0
    assert other["digests"] != first["digests"] == again["digests"]
    assert again["counts"].keys() == {"hits"}


def test_each_version_has_a_key_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = stored_code.generator.__wrapped__
    before = generator()
    assert generator() == before
    with monkeypatch.context() as other:
        other.setattr(sources, "__version__", "0.0.9")
        assert generator() != before
    with monkeypatch.context() as other:
        other.setattr(stored_code.llvmlite, "__version__", "0.0.9")
        assert generator() != before
    with monkeypatch.context() as other:
        other.setattr(sys, "platform", "another")
        assert generator() != before
    assert generator() == before


def test_a_changed_module_changes_the_key(tmp_path: Path, constants: Constants) -> None:
    constants(sources, PACKAGE=str(tmp_path))
    inside = tmp_path / "plan" / "passes"
    inside.mkdir(parents=True)
    module = inside / "fold.py"
    digests = list[str]()
    for text, moment in (("a = 1", 10), ("a = 1", 11), ("a = 12", 11)):
        module.write_text(text)
        os.utime(module, (moment, moment))
        digests.append(sources.folder_digest.__wrapped__("plan"))
    (inside / "more.py").write_text("")
    digests.append(sources.folder_digest.__wrapped__("plan"))
    assert len(set(digests)) == 4
    (inside / "notes.txt").write_text("no module")
    assert sources.folder_digest.__wrapped__("plan") == digests[-1]


def test_the_source_of_a_pass_is_in_the_key_of_a_loop_on_a_gpu(
    cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    plan = cell_plan("gru", 8)
    copy = Path(shutil.copytree(os.path.join(sources.PACKAGE, "compiler"), tmp_path / "copy" / "compiler"))

    def stored() -> int:
        """The entries that a process stores which needs a loop."""
        LOOPS.clear()
        for each in (sources.folder_digest, stored_code.generator):
            each.cache_clear()
        before = store.COUNTS["stored"]
        loop_of(plan, 16, DEVICE)
        return store.COUNTS["stored"] - before

    assert (stored(), stored()) == (1, 0)
    with monkeypatch.context() as patch:
        Constants(patch)(sources, PACKAGE=str(copy.parent))
        assert stored() == 0, "the same files elsewhere are the same"
        os.utime(copy / "plan" / "passes" / "hoist.py", (1, 1))
        assert (stored(), stored()) == (1, 0)
    assert stored() == 0


def test_modules_without_sources_change_the_key(tmp_path: Path, constants: Constants) -> None:
    constants(sources, PACKAGE=str(tmp_path))
    cached = tmp_path / "plan" / "__pycache__"
    cached.mkdir(parents=True)
    (cached / "fold.cpython-311.pyc").write_bytes(b"of a source that is not there")
    with pytest.raises(
        folder.NotUsableError, match=f"^{tmp_path / 'plan'} has no modules, so it cannot be checked"
    ):
        sources.folder_digest.__wrapped__("plan")
    digests = list[str]()
    for data in (b"1", b"12"):
        (tmp_path / "plan" / "fold.pyc").write_bytes(data)
        digests.append(sources.folder_digest.__wrapped__("plan"))
    assert digests[0] != digests[1]


def test_without_a_list_of_the_modules_nothing_is_stored(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, constants: Constants
) -> None:
    constants(sources, PACKAGE=str(tmp_path / "bundle.zip" / "stepnet"))
    monkeypatch.setattr(sources, "folder_digest", sources.folder_digest.__wrapped__)
    monkeypatch.setattr(stored_code, "generator", stored_code.generator.__wrapped__)
    (tmp_path / "bundle.zip").write_bytes(b"")
    rnn = sn.RNN(lambda x, h, p: (h * 3.25, h * 3.25 + x), memory=2)
    x = np.arange(12, dtype="float32").reshape(1, 6, 2)
    np.testing.assert_array_equal(rnn(x)[0], rnn(x, engine="interpret")[0])
    assert not [file for file in cache.glob("*") if file.suffix != ".targets"]
    folder = os.path.join(sources.PACKAGE, "compiler/values")
    reason = f"{folder} cannot be listed (Not a directory), so it cannot be checked"
    assert str(overview.why_not(settings())).startswith(reason)


def test_this_processor_is_known_by_what_the_system_says(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask = processor.supported_processors.__wrapped__
    assert ask() == processor.supported_processors()
    monkeypatch.setattr(processor, "processors_by_llvm", lambda: pytest.fail("LLVM is asked again"))
    assert ask() == processor.supported_processors()
    here = processor.processor_identity()
    assert here is not None
    with monkeypatch.context() as other:
        other.setattr(processor, "processor_identity", lambda: here.replace("flags", "flags : none"))
        with pytest.raises(pytest.fail.Exception, match="LLVM is asked again"):
            ask()
    # An emulator, where the system's files describe the processor below it.
    features = dict.fromkeys(np._core._multiarray_umath.__cpu_features__, False)  # pyright: ignore
    monkeypatch.setattr(np._core._multiarray_umath, "__cpu_features__", features)  # pyright: ignore
    with pytest.raises(pytest.fail.Exception, match="LLVM is asked again"):
        ask()


# ---- loading -----------------------------------------------------------------------------------------------


def test_every_object_is_loaded_without_llvm(compiled: tuple[Path, dict[str, Any]]) -> None:
    cache, _ = compiled
    kinds = {"plan": PLAN, "kernel": stored_code.KERNEL}
    files = [file for file in cache.iterdir() if file.suffix[1:] in kinds]
    for file in files:
        value = kinds[file.suffix[1:]].unpacked(file.read_bytes()[48:])
        code = value if file.suffix == ".kernel" else value.code
        made = image.Image.of(code.data)
        assert made is not None, file
        assert set(code.names) <= made.functions.keys()
        outside = {each.symbol.name for each in made.relocations if not each.symbol.is_defined}
        driver = {name for name in outside if name.startswith("driver_") and file.suffix == ".plan"}
        known = {"memcpy", "memset", "system_wait", "system_post", "system_yield", "system_clock"}
        assert {name for name in outside if not name.startswith("Py")} <= known | driver
    assert len(files) > 10


def test_llvm_loads_the_same_code(monkeypatch: pytest.MonkeyPatch, constants: Constants) -> None:
    """Where the system is another one, its loader is used, with the same results."""
    x = np.random.default_rng(0).standard_normal((2, 9, 6)).astype("float32")

    def run() -> np.ndarray:
        from stepnet.compiler.targets.cpu import engine
        from stepnet.compiler.targets.cpu.compile import compiled

        constants(engine, KEPT=compiled.CompiledPlans(2**20))
        constants(stored_code, LOADED={})
        return sn.cells.rnn("lstm", sn.cells.CELLS["lstm"].parameters(6, 5, seed=0))(x)[0]

    own = run()
    monkeypatch.setattr(image.Image, "of", lambda data: None)
    assert run().tobytes() == own.tobytes()


@pytest.mark.parametrize(
    "data",
    [b"", b"\x7fELF", b"MZ" + bytes(200), b"\x7fELF\x01\x01" + bytes(200)],
    ids=lambda data: str(len(data)),
)
def test_objects_of_other_kinds_are_left_to_llvm(data: bytes) -> None:
    assert image.Image.of(data) is None


def test_loaded_code_can_not_be_written_to() -> None:
    sn.cells.rnn("gru", sn.cells.CELLS["gru"].parameters(6, 5, seed=0))(np.zeros((1, 2, 6), "float32"))
    kernel = LlvmEngine().compile_plan(plan_of())
    address = kernel.compiled.run.address
    lines = os.fsdecode(Path("/proc/self/maps").read_bytes()).splitlines()
    ranges = [([int(end, 16) for end in line.split()[0].split("-")], line.split()[1]) for line in lines]
    (permissions,) = [mode for (first, last), mode in ranges if first <= address < last]
    assert permissions == "r-xp"


# ---- schedules ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["stack", "nested", "gru", "gradient"])
def test_a_stored_schedule_is_the_one_that_was_made(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nets = list[Net]()
    with monkeypatch.context() as noted:
        noted.setattr(
            program, "StoredSchedule", lambda net, planning: (nets.append(net), Schedule(net, planning))[1]
        )
        MODELS[name]()
    monkeypatch.setenv("STEPNET_CACHE", "1")
    monkeypatch.setenv("STEPNET_CACHE_DIR", str(tmp_path / "cache"))
    assert nets
    for net in nets:
        made, first, second = Schedule(net, CPU), StoredSchedule(net, CPU), StoredSchedule(net, CPU)
        store.COUNTS.clear()
        assert same(first, made)
        assert store.COUNTS == {"misses": 1, "stored": 1}
        assert same(second, made)
        assert store.COUNTS["hits"] == 1
        assert (second.single_plan is None) == (made.single_plan is None)
        assert [plan.key for plan in second.plans] == [plan.key for plan in made.plans]
    store.COUNTS.clear()


def test_names_and_lines_are_part_of_the_key(cache: Path) -> None:

    def named(name: str, source: str) -> Net:
        builder = Builder()
        x = builder.input(Type(STEPS, (2,), "float32"), name)
        return builder.net([builder.add("tanh", x, source=source)])

    nets = named("x", "a.py:1"), named("y", "a.py:1"), named("x", "a.py:2")
    assert len({key_of(net, CPU) for net in nets}) == 3
    assert key_of(nets[0], CPU) == key_of(named("x", "a.py:1"), CPU)


def test_passes_and_costs_are_part_of_the_key(cache: Path) -> None:
    """A pass of another package may change without a change of stepnet, so its schedules are not stored."""
    net, fibers = rnn_of("gru", 6, 5).schedule.traced, replace(CPU.costs.fibers, long=17)
    other_costs = replace(CPU, costs=replace(CPU.costs, fibers=fibers))
    keys = [key_of(net, each) for each in (CPU, other_costs, replace(CPU, pipeline=CPU.pipeline[1:]))]
    assert None not in keys
    assert len({*keys}) == 3
    assert key_of(net, replace(CPU, pipeline=(lambda net: net,))) is None
    named = [key_under(("named", name), CPU) for name in ("a", "b")]
    named += [
        key_under(("named", "a"), each) for each in (other_costs, replace(CPU, pipeline=CPU.pipeline[1:]))
    ]
    assert None not in named
    assert len({*named, *keys}) == 7


def test_large_arrays_of_the_user_are_not_stored(cache: Path) -> None:

    def adding(numbers: int) -> Net:
        builder = Builder()
        x = builder.input(Type(STEPS, (numbers,), "float32"), "x")
        return builder.net([builder.add("add", x, builder.constant(np.ones(numbers, "float32")))])

    assert key_of(adding(MOST_BYTES // 4), CPU) is not None
    assert key_of(adding(MOST_BYTES // 4 + 1), CPU) is None


def same(one: Schedule, other: Schedule) -> bool:
    """True if two schedules have equal parts, including the names and lines of their nodes."""
    return FIELDS.packed(described(one)) == FIELDS.packed(described(other))


def described(schedule: Schedule) -> Any:
    """The parts of a schedule as text."""
    parts = [
        (repr({**vars(part), "inner": None}), part.inner and described(part.inner)) for part in schedule.parts
    ]
    return repr(schedule.net), parts


FIELDS = Serializer()


# ---- data --------------------------------------------------------------------------------------------------


def test_arrays_keep_their_bits_dtypes_and_shapes() -> None:
    form = Serializer()
    arrays = [
        np.array([np.nan, -0.0, np.inf], "float32"),
        np.zeros((0, 3), "float64"),
        np.array(True),
        np.arange(6, dtype="int32").reshape(2, 3).T,
    ]
    again = form.unpacked(form.packed(arrays))
    for array, other in zip(arrays, again, strict=True):
        assert (array.dtype, array.shape, array.tobytes()) == (other.dtype, other.shape, other.tobytes())


def test_an_array_that_comes_twice_is_written_once() -> None:
    form, array = Serializer(), np.arange(1000.0)
    once, twice = form.packed([array]), form.packed([array, array, array[:0], array.reshape(10, 100)])
    assert len(twice) < len(once) + array.nbytes + 200  # the last one is another array
    again = form.unpacked(twice)
    assert again[0] is again[1]
    assert [each.shape for each in again] == [(1000,), (1000,), (0,), (10, 100)]
    np.testing.assert_array_equal(again[3].ravel(), array)


def test_objects_are_checked_when_they_are_read() -> None:
    form, types = Serializer(Type), (Type(STEPS, (2,), "float32"),)
    data = form.packed(types)
    assert form.unpacked(data) == types
    with pytest.raises(NotDataError, match="float99"):
        form.unpacked(data.replace(b"float32", b"float99"))


def test_numbers_keep_their_kinds() -> None:
    value = (1, 1.0, True, None, "1", 0.1, float("inf"), -0.0, 2**70, {"a": [1, (2,)]}, frozenset({3, 1}))
    again = Serializer().unpacked(Serializer().packed(value))
    assert repr(again) == repr(value)


@pytest.mark.parametrize("value", [object, len, 1j, np.float32(1), np.zeros(1, "i4,i4"), {1, 2}], ids=repr)
def test_what_is_no_data_is_refused(value: Any) -> None:
    with pytest.raises(NotDataError, match="is not written as data"):
        Serializer().packed((value,))


def payload_of(document: bytes) -> bytes:
    """A payload of JSON, with its length ahead of it."""
    return len(document).to_bytes(8, "little") + document


FOREIGN = {
    "nothing": b"",
    "other bytes": b"\x7fELF" + bytes(500),
    "no JSON": payload_of(b"rate = 1"),
    "nested JSON": payload_of(b"[" * 100_000),
    "a list": payload_of(b"[]"),
    "a number": Serializer().packed(1.0),
    "an unknown class": payload_of(b'{"value":{"r":0},"rows":[[9]]}'),
    "missing fields": payload_of(b'{"value":{"r":0},"rows":[[0,1]]}'),
    "texts": payload_of(b'{"value":{"r":0},"rows":[[0' + b',"rate"' * 17 + b"]]}"),
    "tuples of few": payload_of(b'{"value":{"r":0},"rows":[[0,[],[]' + b",1" * 14 + b",[]]]}"),
}
"""Payloads that stepnet did not write, with valid checksums."""


@pytest.mark.parametrize("payload", FOREIGN.values(), ids=FOREIGN)
def test_what_something_else_put_there_is_as_if_it_were_missing(cache: Path, payload: bytes) -> None:
    """Rates are read ahead of every call: each raised `JSONDecodeError`."""
    table = table_machine(host_processor())
    assert store_rates(host_processor(), table)
    (file,) = cache.glob("*.machine")
    store.put("machine", file.stem, payload)
    assert stored_rates(host_processor()) is None
    assert store_rates(host_processor(), table), "they are measured again"
