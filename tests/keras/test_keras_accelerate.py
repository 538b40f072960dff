"""`accelerate` makes stepnet run Keras' own layers and loaded models, until it is undone; Keras' own tests
pass with it on.
"""

import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import command_line
import numpy as np
import pytest

import stepnet.keras
from stepnet.errors import InputError
from stepnet.keras.accelerate import THEIRS
from tests.keras.keras_cases import BATCH, INPUTS, STEPS, UNITS, Counted, keras, numbers

PLUGIN = """
import stepnet.keras

def pytest_configure(config):
    for mark in ("requires_trainable_backend", "multi_device"):
        config.addinivalue_line("markers", f"{mark}: Keras'")
    stepnet.keras.accelerate()

def pytest_terminal_summary(terminalreporter):
    terminalreporter.write_line(f"fast and slow: {tuple(stepnet.keras.counters())}")
"""
FILES = {  # of Keras 3.15: how many tests pass and are skipped, and whether Keras' own loop is to run some
    "lstm_test": (6, 0, False),
    "rnn_test": (14, 0, False),
    "gru_test": (8, 2, False),
    "simple_rnn_test": (5, 0, False),
    "bidirectional_test": (12, 1, False),
    "dropout_rnn_cell_test": (2, 0, False),
    "time_distributed_test": (11, 0, False),
    "conv_lstm_test": (2, 0, True),
    "conv_lstm1d_test": (3, 0, True),
    "conv_lstm2d_test": (3, 0, True),
    "conv_lstm3d_test": (3, 0, True),
    "stacked_rnn_cells_test": (7, 0, False),
}


def unpatched() -> bool:
    """True if Keras' methods are its own."""
    return all(vars(kind)[name] is theirs for (kind, name), theirs in THEIRS.items())


@pytest.mark.long(every=12)
@pytest.mark.parametrize("file", FILES)
def test_keras_own_tests_pass_with_it_on(file: str, tmp_path: Path):
    (tmp_path / "accelerated.py").write_text(PLUGIN)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "accelerated",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:xdist",
    ]
    command += ["-c", str(tmp_path / "none.ini"), "--rootdir", str(tmp_path), "-W", "ignore"]
    (tmp_path / "none.ini").write_text("[pytest]\n")
    source = Path(stepnet.keras.__file__).parents[2]
    run = subprocess.run(
        [*command, "--pyargs", f"keras.src.layers.rnn.{file}"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={
            "KERAS_BACKEND": "torch",
            "PYTHONPATH": f"{source}:{tmp_path}",
            "HOME": str(tmp_path),
            "OMP_NUM_THREADS": "1",
        },
        check=False,
    )
    passed, skipped, slow = FILES[file]
    counts = re.search(r"fast and slow: \((\d+), (\d+)\)", run.stdout)
    assert counts is not None, run.stdout + run.stderr
    print(file, counts[0])
    text = f"{passed} passed" + (f", {skipped} skipped" if skipped else "")
    assert text in run.stdout, run.stdout
    assert "failed" not in run.stdout, run.stdout
    assert (int(counts[2]) > 0) is slow


def model_of(where: Any) -> Any:
    """A model with a layer of each kind."""
    return keras.Sequential(
        [
            keras.Input((None, INPUTS)),
            where.Bidirectional(where.LSTM(UNITS, return_sequences=True)),
            where.TimeDistributed(keras.layers.Dense(4)),
            where.GRU(UNITS, return_sequences=True, name="second"),
            where.RNN(keras.layers.SimpleRNNCell(3)),
        ]
    )


def test_a_loaded_model_is_run_until_it_is_undone(tmp_path: Path):
    saved, x = model_of(keras.layers), numbers(BATCH, STEPS, INPUTS)
    saved.save(tmp_path / "model.keras")
    right = saved.predict(x, verbose=0)
    done = stepnet.keras.accelerate()
    with Counted() as counted:
        loaded = keras.saving.load_model(tmp_path / "model.keras")
        np.testing.assert_allclose(loaded.predict(x, verbose=0), right, atol=1e-6)
    assert (counted.fast, counted.slow) == (4, 0)
    assert type(loaded.layers[2]) is keras.layers.GRU
    assert "second: compiled, GRUCell" in str(stepnet.keras.report(loaded)).splitlines()
    done.undo()
    done.undo()
    with Counted() as counted:
        loaded.predict(x, verbose=0)
    assert counted.fast == 0
    assert unpatched()


def test_accelerations_may_overlap():
    layer, x = keras.layers.LSTM(UNITS), numbers(BATCH, STEPS, INPUTS)
    outer = stepnet.keras.accelerate()
    with stepnet.keras.accelerate():
        pass
    with Counted() as counted:
        layer(x)
    assert counted.fast == 1
    outer.undo()
    assert unpatched()


def test_threads_begin_and_end_their_own():
    def run() -> int:
        missed = 0
        for _ in range(1000):
            with stepnet.keras.accelerate():
                missed += unpatched()
        return missed

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as pool:
            assert sum(thread.result() for thread in [pool.submit(run) for _ in range(4)]) == 0
    finally:
        sys.setswitchinterval(before)
    assert unpatched()


def test_it_ends_where_an_error_leaves_the_block():
    with pytest.raises(KeyError), stepnet.keras.accelerate():
        raise KeyError
    assert unpatched()


def test_our_layers_keep_config_and_files(tmp_path: Path):
    ours, x = model_of(stepnet.keras), numbers(BATCH, STEPS, INPUTS)
    right = ours.predict(x, verbose=0)
    for theirs, layer in zip(model_of(keras.layers).layers, ours.layers, strict=True):
        assert theirs.get_config().keys() == layer.get_config().keys()
    ours.save(tmp_path / "ours.keras")
    loaded = keras.saving.load_model(tmp_path / "ours.keras")
    assert type(loaded.layers[2]) is stepnet.keras.GRU
    np.testing.assert_array_equal(loaded.predict(x, verbose=0), right)


def test_a_report_says_what_it_knows():
    model = model_of(stepnet.keras)
    assert len(stepnet.keras.report(model).unknown) == 4
    assert str(stepnet.keras.report(model)).count(": stepnet was not called for it yet") == 4
    with stepnet.keras.accelerate() as active:
        assert "recurrent layers, active; stepnet.keras.report(model) lists these" in str(active)
    assert "recurrent layers, ended" in str(active)
    with pytest.raises(InputError, match=r"accelerate\(\) takes no model, .*: with stepnet.keras.accelerate"):
        stepnet.keras.accelerate(model)
    assert str(stepnet.keras.report(keras.layers.Dense(1))) == "there are no recurrent layers"
    with pytest.raises(InputError, match="report takes a model or a layer of Keras, not a str"):
        stepnet.keras.report("model")


def test_convolutions_run_keras_own_loop():
    layer = keras.layers.ConvLSTM1D(2, 3)
    with stepnet.keras.accelerate(), Counted() as counted:
        layer(numbers(2, 3, 8, 1))
        layer(numbers(2, 3, 8, 1))
    assert (counted.fast, counted.slow) == (0, 2)
    (reason,) = stepnet.keras.report(layer).left.values()
    assert "conv_lstm.py:" in reason


def test_a_file_of_ours_converts_as_one_of_keras(tmp_path: Path):
    texts = list[str]()
    for name, where in (("ours", stepnet.keras), ("theirs", keras.layers)):
        layers = [
            where.Bidirectional(where.LSTM(UNITS, return_sequences=True, name="lstm"), name="first"),
            where.GRU(UNITS, name="second"),
        ]
        path = tmp_path / f"{name}.keras"
        keras.Sequential([keras.Input((None, INPUTS)), *layers]).save(path)
        command = ["convert", path, "--to", "torch", "-o", path.with_suffix(".safetensors")]
        code, stdout, stderr = command_line.stepnet(*command)
        assert (code, stderr) == (0, "")
        texts.append(stdout.replace(f"{name}.safetensors", "file"))
    assert "keras.gru -> torch.gru: 10 inputs, 5 hidden" in texts[0]
    assert texts[0] == texts[1]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no forks")
def test_importing_it_changes_nothing_of_keras():
    program = """
import os
import keras

for line in ("", "import stepnet.keras"):
    if (child := os.fork()) == 0:
        keras.utils.set_random_seed(1)
        exec(line)
        layer = keras.layers.Dense(2)
        layer.build((None, 3))
        print(layer.name, layer.kernel.numpy().tolist(), keras.random.normal((2,)).tolist(), flush=True)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
"""
    env = {**os.environ, "PYTHONPATH": str(Path(stepnet.keras.__file__).parents[2])}
    command = [sys.executable, "-W", "ignore", "-c", program]
    without, beside = subprocess.run(command, capture_output=True, check=True, env=env).stdout.splitlines()
    assert without.startswith(b"dense ")
    assert without == beside
