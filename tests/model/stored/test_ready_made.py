"""Ready-made code: first calls of known models of files, with the bits of compiled code, and nothing else."""

import os
import shutil
import subprocess
import sys
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ready_made as writer
from constants import Constants
from same_bits import assert_same_bits
from zoo import uniform

import stepnet as sn
from stepnet.compiler.native import ready_made
from stepnet.compiler.values import leaves, transform
from stepnet.onnx import save

ROOT = Path(__file__).resolve().parents[3]
SIZES = 64, 128
"""The inputs and the units of the models that tests write ready-made code of."""
LINES = ready_made.processor_lines() if sys.platform == "linux" else []
NATIVE = ready_made.instruction_set("", LINES)
pytestmark = pytest.mark.skipif(NATIVE is None, reason="ready-made code needs AVX2 or AVX-512, and Linux")


@pytest.fixture(scope="session")
def written(tmp_path_factory: pytest.TempPathFactory) -> dict[str, ready_made.ReadyMade]:
    """The ready-made code of a few models, for the instruction sets of this processor."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STEPNET_CACHE", "1")
        patch.setenv("STEPNET_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        return {name: writer.made(name, SIZES) for name in names()}


@pytest.fixture(scope="session")
def folder(written: dict[str, ready_made.ReadyMade], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files of this code."""
    folder = tmp_path_factory.mktemp("ready_made")
    for name, made in written.items():
        writer.write(made, name, folder)
    return folder


@pytest.fixture(autouse=True)
def cache(
    folder: Path, tmp_path: Path, constants: Constants, monkeypatch: pytest.MonkeyPatch
) -> Generator[Path]:
    """An empty folder for the cache, the ready-made code, and no settings that decide what runs."""
    for name in [name for name in os.environ if name.startswith("STEPNET_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("STEPNET_CACHE", "1")
    monkeypatch.setenv("STEPNET_CACHE_DIR", str(tmp_path / "cache"))
    constants(ready_made, FOLDER=str(folder))
    ready_made.ready_made.cache_clear()
    yield tmp_path / "cache"
    ready_made.ready_made.cache_clear()


def saved(
    folder: Path, cell: str = "gru", inputs: int = 64, hidden: int = 64, seed: int = 0, ending: str = "onnx"
) -> str:
    """A file of a layer whose weights are all random, also biases that `save` writes as one and zeros."""
    random, path = np.random.default_rng(seed), folder / f"{cell}.{ending}"
    layer = sn.cells.rnn(cell, sn.cells.CELLS[cell].parameters(inputs, hidden, seed=0))
    if ending == "onnx":
        save(layer, path, force=True)
    else:
        layer.save(path, force=True)
    contents = path.read_bytes()
    known = ready_made.apart(contents, ending == "onnx")
    assert known is not None
    for weights in known[1]:
        changed = (random.random(weights.size) / 4 - 0.125).astype("<f4").tobytes()
        begin = contents.index(weights.tobytes())
        contents = contents[:begin] + changed + contents[begin + len(changed) :]
    path.write_bytes(contents)
    return str(path)


def is_ready(model: Any) -> bool:
    """Tells whether a model is not made yet."""
    return type(model).__name__ == "ReadyModel"


def names() -> list[str]:
    """The instruction sets of this processor, of those that there is ready-made code for."""
    known = list(ready_made.FLAGS)
    return known[known.index(NATIVE) :] if NATIVE in known else []


def test_code_of_other_sources_is_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = saved(tmp_path)
    assert is_ready(sn.load(path))
    for name, value in (("WORDS", ready_made.WORDS[::-1]), ("WRITERS", ("compiler/net/",))):
        with monkeypatch.context() as context:
            context.setattr(ready_made, name, value)
            ready_made.ready_made.cache_clear()
            assert not is_ready(sn.load(path))
    ready_made.ready_made.cache_clear()
    assert is_ready(sn.load(path))


@pytest.mark.parametrize("name", names())
@pytest.mark.parametrize("ending", ["onnx", "stepnet"])
@pytest.mark.parametrize("cell", ["gru", "lstm"])
@pytest.mark.parametrize("seed", range(2))
def test_ready_made_calls_have_the_bits_of_compiled_ones(
    cell: str, ending: str, name: str, seed: int, tmp_path: Path
) -> None:
    random = np.random.default_rng([seed, *f"{cell} {ending} {name}".encode()])
    inputs, hidden = random.choice(SIZES, 2).tolist()
    path = saved(tmp_path, cell, inputs, hidden, seed, ending)
    calls = ready_made.calls_of(Path(path).read_bytes(), ending == "onnx", name)
    assert calls is not None
    model = sn.load(path)
    repr(model)  # so it is made, and compiled
    assert not is_ready(model)
    for rows, steps in ((1, 1), (2, 20), (int(random.integers(3, 33)), int(random.integers(2, 6))), (64, 2)):
        x = (4 * random.standard_normal((rows, steps, inputs))).astype("f4")
        results = calls.run(x)
        assert results is not None
        assert_same_bits(leaves(results[0]), leaves(model(x)))
        assert transform(type, results[0]) == transform(type, model(x))
    assert calls.runs == 4


@pytest.mark.parametrize("cell", ["gru", "lstm"])
def test_weights_that_are_no_numbers_have_the_bits_of_compiled_code(cell: str, tmp_path: Path) -> None:
    path = Path(saved(tmp_path, cell))
    contents = path.read_bytes()
    known = ready_made.apart(contents, True)
    assert known is not None
    for weights in known[1]:
        odd, half = weights.copy(), weights.size // 2
        # In the file both biases of a unit are half of an array apart: their sum is NaN, and one too large.
        odd[[0, half]], odd[[1, half + 1]], odd[9] = (np.inf, -np.inf), (3e38, 3e38), np.nan
        contents = contents.replace(weights.tobytes(), odd.tobytes())
    path.write_bytes(contents)
    ready, model, x = sn.load(path), sn.load(path), uniform(3, 4, 64)
    repr(model)
    results = ready(x)
    assert is_ready(ready)
    assert_same_bits(leaves(results), leaves(model(x)))


def test_numbers_that_are_no_numbers_have_the_bits_of_compiled_code(tmp_path: Path) -> None:
    path = saved(tmp_path, "lstm")
    x = uniform(3, 4, 64)
    x[0, 1, 5], x[1, 0, 7], x[2, 2, 2] = np.nan, np.inf, 1e-42
    ready, model = sn.load(path), sn.load(path)
    repr(model)
    results = ready(x)
    assert is_ready(ready)
    assert_same_bits(leaves(results), leaves(model(x)))


def test_all_other_calls_are_those_of_the_model(tmp_path: Path) -> None:
    path, x = saved(tmp_path), uniform(2, 5, 64)
    model = sn.load(path)
    repr(model)
    others: list[tuple[Any, dict[str, Any]]] = [
        (np.asfortranarray(x), {}),
        (np.frombuffer(b" " + x.tobytes(), "f4", x.size, 1).reshape(x.shape), {}),  # at an odd address
        (x[::-1], {}),
        (x.astype(">f4"), {}),
        (np.zeros((2, 0, 64), "f4"), {}),
        (np.zeros((0, 5, 64), "f4"), {}),
        (uniform(65, 2, 64), {}),
        (uniform(64, 100, 64), {}),
        (sn.Ragged.from_list([x[0], x[1, :2]]), {}),
        (x, {"lengths": [5, 2]}),
        (x, {"last_only": True}),
        (x, {"time_major": True}),
        (x, {"engine": "interpret"}),
    ]
    for given, options in others:
        ready = sn.load(path)
        assert is_ready(ready)
        results = ready(given, **options)
        assert type(ready) is sn.Graph
        assert ready.ran_before is None
        for own, right in zip(leaves(results), leaves(model(given, **options)), strict=True):
            assert_same_bits(getattr(own, "values", own), getattr(right, "values", right))
    for wrong in (x.astype("f8"), np.ascontiguousarray(x[:, :, :63]), x[0]):
        with pytest.raises(sn.StepnetError) as ours:
            sn.load(path)(wrong)
        with pytest.raises(sn.StepnetError) as theirs:
            model(wrong)
        assert str(ours.value) == str(theirs.value)


@pytest.mark.parametrize("ending", ["onnx", "stepnet"])
def test_models_that_are_not_known_are_made(ending: str, tmp_path: Path) -> None:
    for cell, inputs, hidden in (("gru", 64, 63), ("gru", 60, 64), ("gru_reset_before", 64, 64)):
        assert not is_ready(sn.load(saved(tmp_path, cell, inputs, hidden, ending=ending)))
    path, parameters = tmp_path / f"reverse.{ending}", sn.cells.CELLS["gru"].parameters(64, 64, seed=0)
    layer = sn.cells.rnn("gru", parameters, reverse=True)
    if ending == "onnx":
        save(layer, path)
    else:
        layer.save(path)
    assert not is_ready(sn.load(path))


def test_explain_says_what_ran(tmp_path: Path) -> None:
    path, x = saved(tmp_path), uniform(2, 5, 64)
    ready = sn.load(path)
    assert "ready-made" not in sn.load(path).explain()
    ready(x)
    ready(x[:1])
    first = ready.explain().splitlines()[0]
    assert first == f"2 calls before the model was made ran by ready-made code ({NATIVE})"


def test_a_model_that_runs_often_is_made(tmp_path: Path, constants: Constants) -> None:
    path, x = saved(tmp_path), uniform(2, 5, 64)
    ready = sn.load(path)
    constants("stepnet.compiler.native.frozen", BREAK_EVEN=1e-9)
    first = ready(x)
    assert is_ready(ready)
    assert_same_bits(leaves(ready(x)), leaves(first))
    assert not is_ready(ready)


def test_a_model_of_many_shapes_is_made(tmp_path: Path) -> None:
    ready = sn.load(saved(tmp_path))
    for steps in range(1, ready_made.MOST_SHAPES + 1):
        ready(uniform(2, steps, 64))
        assert is_ready(ready)
    ready(uniform(3, 1, 64))
    assert not is_ready(ready)


@pytest.mark.parametrize("name", ["STEPNET_ONEDNN", "STEPNET_NUM_THREADS"])
def test_other_settings_need_the_model(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "1")
    assert not is_ready(sn.load(saved(tmp_path)))


def test_other_processors_have_no_ready_made_code() -> None:
    for chosen in ("generic", "aarch64", "x86-64-v5"):
        assert ready_made.instruction_set(chosen, LINES) is None
    assert ready_made.instruction_set("native", LINES) == NATIVE
    for flag in ready_made.FLAGS["x86-64-v4"].split():
        without = [" ".join(word for word in line.split(" ") if word.strip() != flag) for line in LINES]
        left = None if flag in ready_made.AVX2.split() else "x86-64-v3"
        assert ready_made.instruction_set("", without) == left
    assert ready_made.instruction_set("", []) is None


def test_an_instruction_set_that_numpy_does_not_find_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    own: Any = sys.modules["numpy._core._multiarray_umath"]
    for missing, left in ((["AVX512_SKX"], "x86-64-v3"), (["AVX512_SKX", "FMA3"], None)):
        for name in missing:
            monkeypatch.setitem(own.__cpu_features__, name, False)
        assert ready_made.instruction_set("", LINES) == left


@pytest.mark.parametrize(
    "damage", ["changed", "short", "empty", "renamed", "no data", "one number", "folder"]
)
def test_damaged_ready_made_code_is_not_run(
    damage: str, folder: Path, tmp_path: Path, constants: Constants
) -> None:
    own, file = tmp_path / "code", f"{NATIVE}.calls"
    shutil.copytree(folder, own)
    data = (own / file).read_bytes()
    middle = len(data) // 2
    payload = ready_made.entry.read(file, data)
    assert payload is not None
    damaged = {
        "changed": data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :],
        "short": data[:-1],
        "empty": b"",
        "renamed": ready_made.entry.file_contents("other.calls", payload),
        "no data": ready_made.entry.file_contents(file, b"no data"),
        "one number": ready_made.entry.file_contents(file, ready_made.FORM.packed(1)),
    }
    (own / file).unlink()
    if damage == "folder":
        (own / file).mkdir()
    else:
        (own / file).write_bytes(damaged[damage])
    constants(ready_made, FOLDER=str(own))
    model = sn.load(saved(tmp_path))
    assert not is_ready(model)
    model(uniform(2, 5, 64))
    assert ready_made.state().startswith(f"not used for {NATIVE}: damaged, or other sources wrote it")


def test_a_clone_without_ready_made_code_compiles(tmp_path: Path, constants: Constants) -> None:
    assert ready_made.state() == f"of 16 models for {NATIVE}"
    constants(ready_made, FOLDER=str(tmp_path))
    ready_made.ready_made.cache_clear()
    model = sn.load(saved(tmp_path))
    assert not is_ready(model)
    assert "ready-made" not in model.explain()
    assert ready_made.state().startswith(f"not there for {NATIVE}: wheels have it")


def test_sources_of_a_clone_that_kept_their_sizes_are_noticed(tmp_path: Path, constants: Constants) -> None:
    shutil.copytree(Path(str(sn.__file__)).parent / "compiler", tmp_path / "compiler")
    constants("stepnet.compiler.disk.sources", PACKAGE=str(tmp_path), FOUND={})
    assert ready_made.ready_made(str(NATIVE)) is not None
    changed = tmp_path / "compiler" / "plan" / "plan.py"
    changed.write_bytes(changed.read_bytes()[:-2] + b" \n")
    constants(ready_made, PROJECT=str(tmp_path / "pyproject.toml"))
    for is_clone in (False, True):
        if is_clone:
            Path(ready_made.PROJECT).touch()
        ready_made.ready_made.cache_clear()
        assert (ready_made.ready_made(str(NATIVE)) is None) == is_clone


def test_threads_that_call_one_model_have_its_results(tmp_path: Path) -> None:
    path, inputs = saved(tmp_path), [uniform(1 + place % 3, 30, 64) for place in range(6)]
    model = sn.load(path)
    repr(model)
    right = [model(x) for x in inputs]
    with ThreadPoolExecutor(6) as threads:
        for _ in range(10):
            ready = sn.load(path)
            assert is_ready(ready)
            for own, expected in zip(threads.map(ready, inputs), right, strict=True):
                assert_same_bits(leaves(own), leaves(expected))


FORK = """
import os, sys
import numpy as np
import stepnet as sn
from stepnet.compiler.native import ready_made
ready_made.FOLDER = sys.argv[2]
x = np.ones((2, 5, 64), "float32")
model = sn.load(sys.argv[1])
first = list(model(x).values())
child = os.fork()
others = list(model(2 * x if child else x).values())
assert type(model).__name__ == "ReadyModel"
if not child:
    os._exit(int(not all(map(np.array_equal, first, others))))
print(os.waitpid(child, 0)[1], all(map(np.array_equal, first, model(x).values())))
"""


def test_a_ready_made_call_works_on_both_sides_of_a_fork(folder: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-c", FORK, saved(tmp_path), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == "0 True\n"


def test_the_digest_of_a_file_is_of_all_but_its_weights_and_its_writer(tmp_path: Path) -> None:
    first, other = (Path(saved(tmp_path, seed=seed)).read_bytes() for seed in (0, 1))
    known, found = ready_made.apart(first, True), ready_made.apart(other, True)
    assert known is not None
    assert found is not None
    assert known[0] == found[0]
    assert first != other
    renamed = ready_made.apart(first.replace(b"stepnet", b"another", 1), True)
    assert renamed is not None
    assert renamed[0] == known[0]
    begins = [first.index(weights.tobytes()) for weights in known[1]]
    places = [(begin, begin + each.nbytes) for begin, each in zip(begins, known[1], strict=True)]
    name = first.index(b"stepnet")
    writer = name - 2, name + len(b"stepnet")  # with the number of the field, and its size
    changed = 0
    for place in np.random.default_rng(0).permutation(len(first)):
        if any(begin <= place < end for begin, end in (*places, writer)) or changed == 300:
            continue
        damaged = bytearray(first)
        damaged[place] ^= 1 << (int(place) % 8)
        now = ready_made.apart(bytes(damaged), True)
        assert now is None or now[0] != known[0], place
        changed += 1
    assert changed > 200


@pytest.mark.parametrize("ending", ["onnx", "stepnet"])
def test_damaged_files_are_not_known(ending: str, tmp_path: Path) -> None:
    contents = Path(saved(tmp_path, ending=ending)).read_bytes()
    known = ready_made.apart(contents, ending == "onnx")
    assert known is not None
    for end in [*range(200), *range(len(contents) - 300, len(contents))]:
        found = ready_made.apart(contents[:end], ending == "onnx")
        assert found is None or found[0] != known[0], end
    random = np.random.default_rng(0)
    for size in range(200):
        ready_made.apart(random.bytes(size), ending == "onnx")
    path = tmp_path / f"cut.{ending}"
    path.write_bytes(contents[:-100])
    with pytest.raises(sn.StepnetError, match=r"cut\."):
        sn.load(path)


def test_the_header_of_a_stored_model_says_whether_it_is_known(tmp_path: Path) -> None:
    contents = Path(saved(tmp_path, ending="stepnet")).read_bytes()
    known = ready_made.apart(contents, False)
    assert known is not None
    size = 8 + int.from_bytes(contents[:8], "little")
    for place in range(8, size, 7):
        damaged = bytearray(contents)
        damaged[place] ^= 1
        now = ready_made.apart(bytes(damaged), False)
        assert now is not None
        assert now[0] != known[0]
    damaged = contents[:size] + bytes(len(contents) - size)
    assert ready_made.apart(damaged, False) is not None
    assert ready_made.known_call(damaged, False) is not None  # weights may be any numbers


FIRST = """
import sys
import numpy as np
import stepnet as sn
from stepnet.compiler.native import ready_made
ready_made.FOLDER = sys.argv[2]
model = sn.load(sys.argv[1])
model(np.zeros((2, 5, 64), "float32"))
ours = {name.removeprefix("stepnet.") for name in sys.modules if name.startswith("stepnet.")}
late = ["compiler.net", "compiler.trace", "compiler.plan", "compiler.targets", "model.model", "ragged"]
print(type(model).__name__, len(ours))
print(ours.intersection(late), sys.modules.keys() & {"ml_dtypes", "llvmlite"})
"""
MOST_MODULES = 36
"""The modules of stepnet that a process imports for a ready-made call."""


@pytest.mark.parametrize("chosen", ["", "x86-64-v3"])
def test_a_ready_made_call_needs_no_net_no_plan_and_no_engine(
    chosen: str, folder: Path, tmp_path: Path
) -> None:
    variables = {**os.environ, "STEPNET_CPU": chosen} if chosen else {**os.environ}
    command = [sys.executable, "-c", FIRST, saved(tmp_path), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=variables)
    first, others = done.stdout.splitlines()
    kind, count = first.split()
    assert kind == "ReadyModel"
    assert int(count) <= MOST_MODULES
    assert others == "set() set()"


OTHER = """
import sys
from pathlib import Path
import ready_made
ready_made.write(ready_made.made(sys.argv[1], (64, 128)), sys.argv[1], Path(sys.argv[2]))
"""


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.long) for name in names()])
def test_any_processor_writes_the_code_for_all(
    name: str, written: dict[str, ready_made.ReadyMade], tmp_path: Path, constants: Constants
) -> None:
    path = os.pathsep.join([str(ROOT / "release"), *sys.path])
    variables = {**os.environ, "STEPNET_CPU": "generic", "PYTHONPATH": path}
    command = [sys.executable, "-c", OTHER, name, str(tmp_path)]
    subprocess.run(command, check=True, env=variables)
    constants(ready_made, FOLDER=str(tmp_path))
    ready_made.ready_made.cache_clear()
    other = ready_made.ready_made(name)
    assert other is not None
    assert writer.is_written_now(written[name], other)
