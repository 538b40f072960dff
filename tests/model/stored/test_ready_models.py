"""Models of files whose call is stored: ready to run it, with the same bits, and the model for all else."""

import copy
import os
import pickle
import subprocess
import sys
from contextlib import suppress
from linecache import getline
from pathlib import Path
from threading import Barrier, Thread
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from constants import Constants
from same_bits import assert_same_bits
from zoo import rnn_of, uniform

import stepnet as sn
from stepnet.compiler.values import leaves
from stepnet.onnx import save

SHAPE = 2, 5, 3


pytestmark = pytest.mark.usefixtures("cache")


def saved(folder: Path, ending: str = "stepnet", cell: str = "gru") -> tuple[Any, str]:
    """A model of a cell, and a file of it."""
    model, path = rnn_of(cell, 3, 4, seed=0), str(folder / f"m.{ending}")
    if ending == "onnx":
        save(model, path)
    else:
        model.save(path)
    return model, path


def made(path: str) -> Any:
    """The model of a file whose call is stored, made."""
    model = sn.load(path)
    assert is_ready(model)
    assert isinstance(model, sn.Model)
    assert not is_ready(model)
    return model


def arrays_of(results: Any) -> list[np.ndarray]:
    """The arrays of the results of a call."""
    return [each.values if isinstance(each, sn.Ragged) else each for each in leaves(results)]


def is_ready(model: Any) -> bool:
    """Tells whether a model is not made yet."""
    return type(model).__name__ == "ReadyModel"


def stored(path: str, x: np.ndarray) -> Any:
    """The results of a first call, which is stored."""
    sn.load(path)  # a process that reads the file stores no call
    model = sn.load(path)
    assert not is_ready(model)
    return model(x)


@pytest.mark.parametrize("cell", ["gru", "lstm"])
@pytest.mark.parametrize("ending", ["stepnet", "onnx"])
def test_a_stored_call_has_the_bits_of_the_model(ending: str, cell: str, tmp_path: Path) -> None:
    _, path = saved(tmp_path, ending, cell)
    stored(path, np.zeros(SHAPE, "float32"))
    model = made(path)
    for seed in range(2):
        x = uniform(*SHAPE, seed=seed)
        ready = sn.load(path)
        results = ready(x)
        assert is_ready(ready)
        expected = model(x)
        assert_same_bits(arrays_of(results), arrays_of(expected))
        ready.explain()  # it is the model now
        assert_same_bits(ready(x), results)


def test_anything_else_is_asked_of_the_model(tmp_path: Path) -> None:
    model, path = saved(tmp_path)
    x = uniform(*SHAPE)
    stored(path, x)
    others: list[tuple[Any, dict[str, Any]]] = [
        (np.ascontiguousarray(x[:, :3]), {}),
        (np.concatenate([x, x]), {}),
        (np.asfortranarray(x), {}),
        (sn.Ragged.from_list([x[0], x[1, :2]]), {}),
        (x, {"lengths": [5, 2]}),
        (x, {"last_only": True}),
        (x, {"time_major": True}),
        (x, {"initial": uniform(2, 4)}),
        (x, {"mask": np.ones((2, 5), bool)}),
    ]
    for given, options in others:
        ready = sn.load(path)
        assert is_ready(ready)
        assert_same_bits(arrays_of(ready(given, **options)), arrays_of(model(given, **options)))
        assert type(ready) is sn.RNN
    with pytest.raises(sn.StepnetError, match=r"f64\[3\], and the model was saved for rows f32\[3\]"):
        sn.load(path)(x.astype("float64"))
    assert isinstance(sn.load(path), sn.RNN)
    assert repr(sn.load(path)) == repr(model)
    assert_same_bits(sn.load(path).params, model.params)
    assert "explain" in dir(sn.load(path))
    assert sn.load(path).__doc__ == sn.RNN.__doc__
    assert vars(sn.load(path)).keys() == vars(model).keys()
    for twin in (
        copy.copy(sn.load(path)),
        copy.deepcopy(sn.load(path)),
        pickle.loads(pickle.dumps(sn.load(path))),
    ):
        assert_same_bits(twin(x), model(x))
    with pytest.raises(sn.StepnetError, match="the params of this RNN cannot be set"):
        sn.load(path).params = {}


MISTAKES = (
    "len(model)", "[*model]", "next(model)", "model[0]", "0 in model", "model < 1", "1 <= model", "model + 1",
    "1 - model", "-model", "model @ model", "int(model)", "float(model)", "range(model)", "bytes(model)",
    "format(model, '5')", "del model[0]", "model[0] = 1", "model += 1", "model(*range(10))",
    "abs(model)", "round(model)", "divmod(2, model)", "pow(model, 2, 3)", "with model: pass",
)  # fmt: skip


def message_of(code: str, model: Any) -> str:
    """The kind and the text of the error that code raises."""
    with pytest.raises((TypeError, sn.StepnetError)) as found:
        exec(code, {"model": model})
    return f"{found.type.__name__}: {found.value}"


def test_a_mistake_gets_the_message_of_the_model(tmp_path: Path) -> None:
    model, path = saved(tmp_path)
    stored(path, np.zeros(SHAPE, "float32"))
    for code in MISTAKES:
        ready = sn.load(path)
        assert is_ready(ready)
        assert message_of(code, ready) == message_of(code, model), code
    assert bool(sn.load(path))


@pytest.mark.parametrize("options", [{"time_major": True}, {"last_only": True}, {"initial": uniform(2, 4)}])
def test_a_first_call_with_options_is_not_stored(options: dict[str, Any], tmp_path: Path) -> None:
    model, path = saved(tmp_path)
    x = uniform(2, 2, 3)
    sn.load(path)
    sn.load(path)(x, **options)
    assert_same_bits(sn.load(path)(x), model(x))


@pytest.mark.parametrize("ending", ["stepnet", "onnx"])
def test_a_file_that_is_gone_is_not_read_again(ending: str, tmp_path: Path, cache: Path) -> None:
    _, path = saved(tmp_path, ending)
    x = uniform(*SHAPE)
    expected = stored(path, x)
    ready = sn.load(path)
    os.remove(path)
    for entry in cache.iterdir():
        entry.unlink()
    assert_same_bits(ready(x, lengths=[5, 5]), expected)


def test_an_interrupt_leaves_a_ready_model_whole(tmp_path: Path) -> None:
    model, path = saved(tmp_path)
    x = uniform(*SHAPE)
    stored(path, x)
    interrupts = 0
    for place in range(20):
        ready = sn.load(path)

        def interrupt(frame: Any, event: str, _: Any, place: int = place) -> Any:
            nonlocal interrupts
            code, line = frame.f_code, frame.f_lineno
            if code.co_name != "become_model":
                return None
            # None comes between the beginning of a lock's block, or its end, and what the lock does there.
            is_lock = "with " in getline(code.co_filename, line)
            if event == "line" and line - code.co_firstlineno == place and not is_lock:
                interrupts += 1
                raise KeyboardInterrupt
            return interrupt

        before = sys.gettrace()
        sys.settrace(interrupt)
        try:
            with suppress(KeyboardInterrupt):
                repr(ready)
        finally:
            sys.settrace(before)
        assert_same_bits(ready(x), model(x))
        assert vars(ready).keys() == vars(model).keys()
    assert interrupts > 4


def test_a_call_on_a_dtype_of_another_package_is_not_stored(tmp_path: Path) -> None:
    path, bfloat16 = str(tmp_path / "m.stepnet"), np.dtype(ml_dtypes.bfloat16)
    spec, identity = sn.Spec(3, bfloat16), np.eye(3, dtype="float32")
    sn.RNN(lambda x, h, p: (h, h + x.astype("float32") @ p), identity, memory=3, inputs=spec).save(path)
    x = np.ones(SHAPE, bfloat16)
    stored(path, x)
    with pytest.raises(sn.StepnetError):
        sn.load(path)(x.view("V2"))


def test_no_call_is_stored_after_parameters_were_written(tmp_path: Path) -> None:
    model, path = saved(tmp_path)
    x = uniform(*SHAPE)
    sn.load(path)
    changed = sn.load(path)
    for array in leaves(changed.params):
        array.flags.writeable = True
        array *= 2
    changed(x)
    assert_same_bits(sn.load(path)(x), model(x))


def test_axes_that_are_no_axes_are_refused_beside_a_stored_call(tmp_path: Path) -> None:
    _, path = saved(tmp_path, "onnx")
    stored(path, uniform(*SHAPE))
    with pytest.raises(sn.StepnetError, match=r"not \[\]"):
        sn.load(path, axes=[])  # type: ignore[arg-type]


def test_a_call_that_is_watched_reports_its_progress(tmp_path: Path, constants: Constants) -> None:
    constants("stepnet.compiler.targets.cpu.running.prepared_chain", SLICE=1e-9)
    _, path = saved(tmp_path)
    x = uniform(2, 900, 3)
    stored(path, x)
    assert type(made(path)) is sn.RNN
    reports = list[Any]()
    with sn.progress(reports.append):
        sn.load(path)(x)
    assert reports[-1].is_done
    assert reports[-1].steps == 1800


def test_threads_share_a_ready_model(tmp_path: Path) -> None:
    model, path = saved(tmp_path)
    x = uniform(*SHAPE)
    stored(path, x)
    ready, gate, made = sn.load(path), Barrier(4), dict[int, Any]()

    def run(number: int) -> None:
        gate.wait()
        for count in range(50):
            made[number] = ready(x) if number or count < 25 else ready(x, lengths=[5, 5])

    threads = [Thread(target=run, args=[number]) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert type(ready) is sn.RNN
    for number in range(4):
        assert_same_bits(made[number], model(x))


def test_a_model_whose_calls_threads_share_is_made_in_the_long_run(
    tmp_path: Path, constants: Constants
) -> None:
    _, path = saved(tmp_path)
    x = uniform(*SHAPE)
    stored(path, x)
    ready = sn.load(path)
    constants("stepnet.compiler.native.frozen", BREAK_EVEN=0.0)
    ready(x)
    assert type(ready) is sn.RNN


def test_a_damaged_call_is_not_run(tmp_path: Path, cache: Path) -> None:
    _, path = saved(tmp_path)
    x = uniform(*SHAPE)
    stored(path, x)
    (entry,) = cache.glob("*.call")
    data = entry.read_bytes()
    entry.write_bytes(data[:-1])
    stored(path, x)  # and stored again
    assert is_ready(sn.load(path))
    assert entry.read_bytes()[48:] == data[48:]


def test_other_code_has_another_call(tmp_path: Path, constants: Constants) -> None:
    _, path = saved(tmp_path)
    stored(path, uniform(*SHAPE))
    for name, value in (("DETERMINING", ("compiler/disk",)), ("LLVM", ("numpy", "version.py"))):
        constants("stepnet.model.ready", **{name: value})
        stored(path, uniform(*SHAPE))
        assert is_ready(sn.load(path))


def test_another_instruction_set_has_another_call(tmp_path: Path, monkeypatch: Any) -> None:
    _, path = saved(tmp_path)
    stored(path, np.zeros(SHAPE, "float32"))
    monkeypatch.setenv("STEPNET_CPU", "generic")
    assert is_ready(sn.load(path))  # this process generates the code that it did before
    done = subprocess.run([sys.executable, "-c", KIND, path], capture_output=True, text=True, check=True)
    assert done.stdout == "RNN\n"


def test_calls_of_files_with_weights_in_others_are_not_stored(tmp_path: Path, cache: Path) -> None:
    onnx = pytest.importorskip("onnx")
    _, path = saved(tmp_path, "onnx")
    whole, file = onnx.load(path), str(tmp_path / "parts.onnx")
    onnx.save_model(whole, file, save_as_external_data=True, location="weights", size_threshold=0)
    stored(file, uniform(*SHAPE))
    assert not list(cache.glob("*.call"))
    stored(path, uniform(*SHAPE))
    assert len(list(cache.glob("*.call"))) == 1


def layers(kind: str) -> Any:
    """A model of several kernels."""
    lstm, gru = rnn_of("lstm", 3, 4, seed=0), rnn_of("gru", 4, 4, seed=1)
    both = sn.Bidirectional(rnn_of("gru", 3, 4, seed=2), rnn_of("gru", 3, 4, seed=3, reverse=True))
    if kind == "two outputs":  # the upper layer reads what the caller gets, too
        return sn.Graph(lambda x, _: (lstm(x)[0], gru(lstm(x)[0])[0]), inputs=sn.Spec(3, "float32"))
    return {"both": both, "stack": sn.Stack([both, rnn_of("gru", 8, 3, seed=4)])}[kind]


@pytest.mark.parametrize("ending", ["stepnet", "onnx"])
@pytest.mark.parametrize("kind", ["both", "stack", "two outputs"])
def test_a_stored_call_of_several_kernels_has_the_bits_of_the_model(
    kind: str, ending: str, tmp_path: Path
) -> None:
    path = str(tmp_path / f"m.{ending}")
    if ending == "onnx":
        save(layers(kind), path)
    else:
        layers(kind).save(path)
    stored(path, np.zeros(SHAPE, "float32"))
    model, ready = made(path), sn.load(path)
    for seed in range(3):
        x = uniform(*SHAPE, seed=seed)
        assert_same_bits(arrays_of(ready(x)), arrays_of(model(x)))
        assert is_ready(ready)
    twin = pickle.loads(pickle.dumps(ready))  # its layers' programs refer to it, and not to another model
    assert_same_bits(arrays_of(twin(np.ones(SHAPE, "f4"))), arrays_of(model(np.ones(SHAPE, "f4"))))


def test_calls_with_work_between_kernels_are_not_stored(tmp_path: Path, cache: Path) -> None:
    gru, path = rnn_of("gru", 3, 3, seed=0), tmp_path / "m.stepnet"
    table = uniform(7, 3)
    models = [
        sn.Graph(
            lambda x, params: gru(x - sn.expand(sn.reduce(x, "mean"), x))[0], inputs=sn.Spec(3, "float32")
        ),
        sn.Graph(lambda x, params: sn.reduce(gru(x)[0], "mean"), inputs=sn.Spec(3, "float32")),
    ]
    x = uniform(*SHAPE)
    for model in models:
        model.save(path, force=True)
        for _ in range(3):
            assert_same_bits(arrays_of(sn.load(path)(x)), arrays_of(model(x)))
    assert not list(cache.glob("*.call"))
    indexed = sn.RNN(lambda x, h, p: (h + p[x], h + p[x]), table, memory=3, inputs=sn.Spec((), "int64"))
    indexed.save(path, force=True)
    numbers = np.array([[1, 2], [3, 4]])
    for _ in range(2):
        assert_same_bits(sn.load(path)(numbers), indexed(numbers))
        with pytest.raises(sn.StepnetError, match="7"):
            sn.load(path)(numbers + 3)


FIRST = """
import sys
import numpy as np
import stepnet as sn
model = sn.load(sys.argv[1])
model(np.zeros((2, 5, 3), "float32"))
ours = {name.removeprefix("stepnet.") for name in sys.modules if name.startswith("stepnet.")}
late = ["compiler.net", "compiler.trace", "compiler.plan", "compiler.targets", "model.model", "ragged"]
print(len(ours), sorted(ours.intersection(late)), sorted(sys.modules.keys() & {"ml_dtypes", "llvmlite"}))
"""
KIND = "import sys, stepnet; print(type(stepnet.load(sys.argv[1])).__name__)"
MOST_MODULES = 32
"""The modules of stepnet that a process imports to run a stored call."""


@pytest.mark.parametrize("ending", ["stepnet", "onnx"])
def test_a_stored_call_needs_no_net_no_plan_and_no_engine(ending: str, tmp_path: Path) -> None:
    _, path = saved(tmp_path, ending)
    stored(path, np.zeros(SHAPE, "float32"))
    done = subprocess.run([sys.executable, "-c", FIRST, path], capture_output=True, text=True, check=True)
    count, _, others = done.stdout.partition(" ")
    assert others.strip() == "[] []"
    assert int(count) <= MOST_MODULES
