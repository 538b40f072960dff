"""Accuracy of models in float16 and in integers alone on the speakers of Japanese Vowels, beside float32.

    python -m bench.devices accuracy

Models: the GRU of the demo, which was trained, and an LSTM and a GRU of 32, 64 and 128 units with random
weights, whose heads are fitted by least squares to the training split. Scales come from 90 utterances of that
split, the figures from the 370 of the other. The integers are those of the C source, which cc compiles.
"""

import ctypes
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import numpy as np
import typer
from rich.progress import track
from safetensors.numpy import load_file

import stepnet as sn
from bench.devices.counting import output_of
from bench.devices.layers import LARGEST, codes
from bench.rows import write_rows
from stepnet.build import DeviceBuild, build
from stepnet.errors import InputError

DATA = Path(sn.__file__).parent / "cli" / "data"
SPEAKERS, INPUTS = 9, 12
FOR_SCALES = 90


class Speech:
    """Utterances of a split: all frames end to end, and the speakers."""

    def __init__(self, split: str) -> None:
        try:
            from pyarrow import parquet
        except ImportError:
            raise InputError("the utterances are in a file of Parquet: pip install pyarrow") from None
        rows = parquet.read_table(DATA / "japanese_vowels.parquet", filters=[("split", "==", split)])
        self.utterances = [np.array(frames, "f4") for frames in rows["frames"].to_pylist()]
        self.speakers = np.array(rows["speaker"].to_pylist()) - 1
        self.offsets = np.cumsum([0, *map(len, self.utterances)])
        self.frames = np.concatenate(self.utterances)

    def ragged(self, count: int | None = None) -> sn.Ragged:
        """Returns the first utterances, all without a count."""
        return sn.Ragged.from_list(self.utterances[:count])

    def correct(self, scores: np.ndarray) -> float:
        """Returns the percentage of speakers whose score is the largest. scores: those of the last frames."""
        return 100 * float((scores.argmax(-1) == self.speakers).mean())


def last(values: Any) -> np.ndarray:
    """Returns the values at the last frame of each utterance."""
    return np.stack([np.asarray(each)[-1] for each in values.to_list()])


def classifier(layer: sn.RNN, weights: np.ndarray, bias: np.ndarray) -> sn.Graph:
    """Returns a layer with a linear head on each of its states."""

    def model(x: Any, params: Any) -> Any:
        """Gives the scores of each frame."""
        return layer(x)[0] @ params["w"] + params["b"]

    return sn.Graph(model, {"w": np.ascontiguousarray(weights), "b": bias}, inputs=INPUTS)


def demo_gru(train: Speech) -> sn.Graph:
    """Returns the model of the demo."""
    file = DATA / "speaker_gru.safetensors"
    weights = load_file(file)
    return classifier(sn.load(file, recurrent_only=True), weights["head.weight"].T, weights["head.bias"])


def fitted(cell: str, units: int, train: Speech) -> sn.Graph:
    """Returns a layer with random weights, whose head is fitted to the states after the utterances."""
    random, (mean, deviation) = np.random.default_rng(0), (train.frames.mean(0), train.frames.std(0))
    width = units * len(sn.cells.CELLS[cell].gates)
    W = random.normal(size=(INPUTS, width)) * 0.5 / deviation[:, None]
    params = {"W": W, "R": random.normal(size=(units, width)) * 0.8 / units**0.5, "b": -mean @ W}
    params["d"] = np.zeros(width)
    if cell == "lstm":
        params["d"][units : 2 * units] = 1.5  # a gate that forgets slowly
    layer = sn.cells.rnn(cell, {name: array.astype("f4") for name, array in params.items()})
    states = last(layer(train.ragged())[0])
    states = np.hstack([states, np.ones((len(states), 1))])
    wanted = states.T @ np.eye(SPEAKERS)[train.speakers]
    head = np.linalg.solve(states.T @ states + 0.01 * np.eye(units + 1), wanted).astype("f4")
    return classifier(layer, head[:-1], head[-1])


MODELS: dict[str, Callable[[Speech], sn.Graph]] = {
    "GRU of the demo": demo_gru,
    **{
        f"{cell.upper()} {units}": lambda train, cell=cell, units=units: fitted(cell, units, train)
        for cell in ("lstm", "gru")
        for units in (32, 64, 128)
    },
}


def scores_of(made: DeviceBuild, utterances: list[np.ndarray]) -> np.ndarray:
    """Returns the integers that a build in C gives at the last frame of each utterance, compiled by cc.

    The build is named m.
    """
    library, (x,), (y,) = (
        made.manifest.with_name("m.so"),
        *(made.program.of(kind) for kind in ("input", "output")),
    )
    assert x.scale is not None
    assert made.source is not None
    output_of(["cc", "-O2", "-std=c99", "-shared", "-fPIC", made.source, "-o", library])
    code = ctypes.CDLL(str(library))
    context, found = np.zeros(made.sizes.ram_bytes // 8 + 1, "i8"), list[np.ndarray]()
    for utterance in utterances:
        frames = codes(utterance, x.scale, x.dtype)
        scores = np.zeros((len(frames), y.size), y.dtype)
        place, given, taken = (ctypes.c_void_p(array.ctypes.data) for array in (context, frames, scores))
        status = code.m_reset(place) or code.m_block(place, ctypes.c_size_t(len(frames)), given, taken)
        assert status == 0
        found.append(scores[-1])
    return np.stack(found)


def row(name: str, train: Speech, test: Speech) -> dict[str, float | str]:
    """Returns how often a model is right: in float32, with weights in float16, and in integers with each kind
    of activations.
    """
    model = MODELS[name](train)
    half = sn.quantize(model, [train.ragged(FOR_SCALES)], "float16")
    found: dict[str, float | str] = {"model": name}
    found |= {
        dtype: test.correct(last(each(test.ragged())))
        for dtype, each in (("float32", model), ("float16", half))
    }
    for activations in LARGEST:
        small = sn.quantize(model, [train.ragged(FOR_SCALES)], "int8", activations=activations)
        with TemporaryDirectory() as folder:
            made = build(small, folder, name="m", target="c")
            found[activations] = test.correct(scores_of(made, test.utterances))
    return found


def rows() -> Iterator[dict[str, float | str]]:
    """Yields how often each model is right, in per cent."""
    train, test = Speech("train"), Speech("test")
    for name in track(MODELS, "models", transient=True):
        yield row(name, train, test)


def command(
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """Print how often models in float16 and in integers are right on Japanese Vowels, beside float32."""
    write_rows([*rows()], as_json, "right, in per cent of 370 utterances")
