"""Models of .stepnet files that come from the disk cache: those of the files, bit for bit."""

import copy
import functools
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from constants import Constants
from same_bits import assert_same_bits
from zoo import rnn_of, uniform

import stepnet as sn
from stepnet.errors import FileError
from stepnet.onnx import save
from tests.model.stored.saved_models import CASES

READ = ("early_ends", "structures", "int8", "products_in_bfloat16", "integers")
"""Models that are read from their files each time: with `until=`, classes of the user, and fewer bits."""
READ += tuple(name for name in CASES if name.startswith("quantized"))


pytestmark = pytest.mark.usefixtures("cache")


@pytest.mark.long(every=4)
@pytest.mark.parametrize("name", CASES)
def test_a_model_from_the_cache_is_that_of_the_file(name: str, tmp_path: Path, cache: Path) -> None:
    case, path = CASES[name](), tmp_path / "m.stepnet"
    expected = case.call(case.model)
    case.model.save(path)
    first = sn.load(path)
    assert len(list(cache.glob("*.model"))) == (name not in READ)
    second = sn.load(path)
    for model in (first, second):
        assert_same_bits(case.call(model), expected)
    assert type(second) is type(first)
    assert (repr(second), str(second.net)) == (repr(first), str(first.net))
    assert str(second.explain()) == str(first.explain())
    second.save(tmp_path / "again.stepnet")
    first.save(tmp_path / "m.stepnet", force=True)
    assert (tmp_path / "again.stepnet").read_bytes() == path.read_bytes()


def test_what_is_known_is_only_for_the_inputs_of_the_file(tmp_path: Path) -> None:
    rnn = sn.RNN(lambda x, h, p: (h + x, h + x), memory=2, inputs=2)
    rnn.save(tmp_path / "m.stepnet")
    sn.load(tmp_path / "m.stepnet")
    kept = sn.RNN(sn.load(tmp_path / "m.stepnet").step, memory=3)
    with pytest.raises(sn.StepnetError, match="the model was saved for"):
        kept(np.zeros((1, 2, 3), "float32"))


def two_of_all(kind: str) -> Any:
    """A model with two inputs, statics and parameters each, all of one kind; the order of each counts."""

    def step(x: Any, memory: Any, params: Any, statics: Any) -> Any:
        memory = np.tanh(x["a"] @ params["A"] + x["b"] @ params["B"] + memory * statics["s"]) - statics["t"]
        return memory, memory

    params = {"A": uniform(3, 3, seed=1), "B": uniform(3, 3, seed=2)}
    inputs, statics = ({name: sn.Spec(3, "float32") for name in names} for names in ("ab", "st"))
    rnn = sn.RNN(step, params, memory=3, inputs=inputs, statics=statics)
    if kind == "RNN":
        return rnn

    def model(x: Any, params: Any, statics: Any) -> Any:
        return rnn(x, statics=statics)[0] @ params["A"] + x["a"] @ params["B"]

    return sn.Graph(model, params, inputs=inputs, statics=statics)


@pytest.mark.parametrize("kind", ["RNN", "Graph"])
def test_what_is_known_is_for_one_order_of_arguments_and_for_any_parameters(
    kind: str, tmp_path: Path
) -> None:
    model, path = two_of_all(kind), tmp_path / "m.stepnet"
    model.save(path)
    sn.load(path)
    x, statics = (
        {name: uniform(2, *shape, 3, seed=ord(name)) for name in names}
        for names, shape in (("ab", (5,)), ("st", ()))
    )
    turned_x, turned_statics = ({name: part[name] for name in reversed(part)} for part in (x, statics))
    for given, still in ((turned_x, statics), (x, turned_statics), (x, statics)):
        assert_same_bits(sn.load(path)(given, statics=still), model(x, statics=statics))
    other = {name: 2 * array for name, array in model.params.items()}
    expected = model.with_params(other)(x, statics=statics)
    kept = sn.load(path)
    changed = kept.with_params(other)
    for each in (changed, pickle.loads(pickle.dumps(changed)), copy.deepcopy(changed)):
        assert_same_bits(each(x, statics=statics), expected)
    made, function = (sn.RNN, kept.step) if kind == "RNN" else (sn.Graph, kept.model)
    options: dict[str, Any] = {"inputs": kept.inputs, "statics": kept.statics}
    options |= {"memory": kept.memory} if kind == "RNN" else {}
    turned = {name: other[name] for name in reversed(other)}
    assert_same_bits(made(function, turned, **options)(x, statics=statics), expected)
    with pytest.raises(sn.StepnetError, match=r"A is const f32\[3, 2\], and the model was saved for"):
        made(function, {**other, "A": other["A"][:, :2]}, **options)


def test_a_step_around_a_known_one_is_traced(tmp_path: Path) -> None:
    two_of_all("RNN").save(tmp_path / "m.stepnet")
    first, kept = (sn.load(tmp_path / "m.stepnet") for _ in range(2))

    @functools.wraps(kept.step)
    def negated(*arguments: Any, **others: Any) -> Any:
        output, memory = kept.step(*arguments, **others)
        return -output, memory

    x, statics = (
        {name: uniform(2, *shape, 3) for name in names} for names, shape in (("ab", [5]), ("st", []))
    )
    made = sn.RNN(negated, kept.params, memory=3, inputs=kept.inputs, statics=kept.statics)
    assert_same_bits(made(x, statics=statics)[0], -first(x, statics=statics)[0])
    own, expected = (model.trace_steps(x, statics=statics) for model in (kept, first))
    assert [*own] == [*expected]
    assert_same_bits([own[name] for name in own], [expected[name] for name in own])


def test_each_fact_changes_the_key(
    monkeypatch: pytest.MonkeyPatch, constants: Constants, tmp_path: Path, cache: Path
) -> None:
    def count(name: str = "m", seed: int = 0) -> int:
        """Saves and loads a model; returns how many models are stored then."""
        rnn_of("gru", 3, 4, seed=seed).save(tmp_path / f"{name}.stepnet", force=True)
        sn.load(tmp_path / f"{name}.stepnet")
        return len(list(cache.glob("*.model")))

    assert [count(), count(), count("n"), count("n", seed=1), count()] == [1, 1, 2, 3, 3]
    with monkeypatch.context() as other:
        other.setattr("stepnet.compiler.disk.sources.__version__", "0.0.9")
        assert [count(), count()] == [4, 4]
    constants("stepnet.model.stored.kept", READING=("compiler/disk",))
    assert count() == 5  # the sources of other modules
    constants("stepnet.model.stored.kept", READING=("docs",))  # where there are none
    assert count() == 5


def test_a_changed_file_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "m.stepnet"
    for seed in (0, 1):
        model = rnn_of("gru", 3, 4, seed=seed)
        model.save(path, force=True)
        for _ in range(2):
            assert_same_bits(sn.load(path).params, model.params)
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(FileError, match=r"m\.stepnet"):
        sn.load(path)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no pipes with names")
@pytest.mark.parametrize("ending", ["stepnet", "onnx"])
def test_a_pipe_is_refused_at_once(ending: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / f"m.{ending}")
    with pytest.raises(FileError, match="this is a device, not a file"):
        sn.load(tmp_path / f"m.{ending}")


def test_a_damaged_entry_is_made_again(tmp_path: Path, cache: Path) -> None:
    path, model = tmp_path / "m.stepnet", rnn_of("gru", 3, 4, seed=0)
    model.save(path)
    sn.load(path)
    (entry,) = cache.glob("*.model")
    entry.write_bytes(entry.read_bytes()[:-1])
    assert_same_bits(sn.load(path).params, model.params)
    assert len(entry.read_bytes()) > 1000


FIRST = """
import sys
import numpy as np
import stepnet as sn
sn.load(sys.argv[1])(np.zeros((2, int(sys.argv[2]), 3), "float32"))
ours = {name.removeprefix("stepnet.") for name in sys.modules if name.startswith("stepnet.")}
late = ["compiler.trace.step", "compiler.trace.rules", "compiler.plan.cutting", "compiler.plan.stages"]
late += ["compiler.plan.passes.hoist", "compiler.plan.passes.absorb", "compiler.targets.schedule_kernel"]
late += ["layout", "importers", "model.gradients", "compiler.plan.groups", "compiler.plan.apart"]
others = ["llvmlite.binding", "onnx", "logging", "pathlib", "traceback", "heapq"]
print(len(ours), sorted(ours.intersection(late)), sorted(sys.modules.keys() & set(others)))
"""
MOST_MODULES = 143
"""The modules of stepnet that a process imports to its first result from a full cache."""


@pytest.mark.parametrize("ending", ["stepnet", "onnx"])
def test_a_first_result_needs_no_tracer_and_no_planner(ending: str, tmp_path: Path) -> None:
    path, model = tmp_path / f"m.{ending}", rnn_of("gru", 3, 4, seed=0)
    if ending == "onnx":
        save(model, path)
    else:
        model.save(path)
    printed = ""
    for steps in range(3, 6):  # the first one fills the cache; the others have calls that it has not stored
        command = [sys.executable, "-c", FIRST, path, str(steps)]
        printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    count, _, others = printed.partition(" ")
    assert others.strip() == "[] []"
    assert int(count) <= MOST_MODULES
