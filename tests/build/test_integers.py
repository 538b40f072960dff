"""Models in integers alone: accuracy on recorded speech, the same integers in C and NumPy, no floats in the
source, and what is refused.
"""

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

import stepnet as sn
from stepnet.build import DeviceBuild, build
from stepnet.compiler.targets.frame import FrameProgram, FrameRun
from stepnet.errors import InputError, RefusedError

DATA = Path(sn.__file__).parent / "cli" / "data"
COMPILER = shutil.which("cc")
needs_compiler = pytest.mark.skipif(COMPILER is None, reason="there is no C compiler, cc")
STRICT = ["-std=c99", "-Wall", "-Wextra", "-Wconversion", "-pedantic", "-Werror"]
SANITISED = ["-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
LARGEST = {"int8": 127, "int16": 32767}
MAIN = """
#include "m.h"
#include <stdio.h>
static m_context context;
static {given} x[M_X_SIZE];
{outputs}
int main(void)
{{
    int32_t frames = 0;
    while (fread(&frames, sizeof frames, 1, stdin) == 1) {{
        if (m_reset(&context) != M_OK) return 1;
        for (; frames > 0; frames--) {{
            if (fread(x, sizeof x, 1, stdin) != 1) return 1;
            if (m_step(&context, x, {names}) != M_OK) return 1;
            {written}
        }}
    }}
    return 0;
}}
"""
"""A program that runs sequences of its standard input, each after its number of frames."""


def codes(program: FrameProgram, sequences: list[np.ndarray]) -> list[np.ndarray]:
    """Sequences as the integers that a program takes."""
    (end,) = program.of("input")
    assert end.scale is not None
    most = LARGEST[end.dtype]
    return [np.clip(np.rint(each / end.scale), -most, most).astype(end.dtype) for each in sequences]


def in_numpy(program: FrameProgram, sequences: list[np.ndarray]) -> list[np.ndarray]:
    """The bytes of the outputs of all frames, by NumPy's operations."""
    run, frames = FrameRun(program), list[np.ndarray]()
    for sequence in sequences:
        run.reset()
        frames += [np.concatenate([each.view("u1") for each in run.step(frame)]) for frame in sequence]
    return frames


def in_c(made: DeviceBuild, sequences: list[np.ndarray], *flags: str) -> list[np.ndarray]:
    """The bytes of the outputs of all frames, by the source, which a compiler makes a program of."""
    program, folder = made.program, made.manifest.parent
    outputs = program.of("output")
    text = MAIN.format(
        given=f"{program.of('input')[0].dtype}_t",
        outputs="\n".join(f"static {each.dtype}_t {each.name}[{each.size}];" for each in outputs),
        names=", ".join(each.name for each in outputs),
        written=" ".join(f"fwrite({each.name}, sizeof {each.name}, 1, stdout);" for each in outputs),
    )
    (folder / "main.c").write_text(text)
    files = [str(folder / "main.c"), str(made.source), "-o", str(folder / "main")]
    done = subprocess.run([str(COMPILER), *STRICT, *flags, *files], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    given = b"".join(np.int32(len(each)).tobytes() + each.tobytes() for each in sequences)
    run = subprocess.run([str(folder / "main")], input=given, capture_output=True, check=False)
    assert run.returncode == 0, run.stderr[-2000:]
    return [*np.frombuffer(run.stdout, "u1").reshape(-1, sum(each.bytes for each in outputs))]


# ---- speakers of Japanese vowels


class Speech:
    """Utterances of a split: all frames end to end, and the speakers."""

    def __init__(self, split: str) -> None:
        parquet = pytest.importorskip("pyarrow.parquet")
        rows = parquet.read_table(DATA / "japanese_vowels.parquet", filters=[("split", "==", split)])
        self.utterances = [np.array(frames, "f4") for frames in rows["frames"].to_pylist()]
        self.speakers = np.array(rows["speaker"].to_pylist()) - 1
        self.offsets = np.cumsum([0, *map(len, self.utterances)])
        self.frames = np.concatenate(self.utterances)

    def ragged(self, count: int | None = None) -> sn.Ragged:
        """The first utterances, all without a count."""
        return sn.Ragged.from_list(self.utterances[:count])

    def correct(self, scores: np.ndarray) -> float:
        """The percentage of speakers whose score is the largest. scores: those of the last frames."""
        return 100 * float((scores.argmax(-1) == self.speakers).mean())


def last(values: Any) -> np.ndarray:
    """The values at the last frame of each utterance."""
    return np.stack([np.asarray(each)[-1] for each in values.to_list()])


def classifier(layer: sn.RNN, weights: np.ndarray, bias: np.ndarray) -> sn.Graph:
    """A layer with a linear head on each of its states."""

    def model(x: Any, params: Any) -> Any:
        """The model function."""
        return layer(x)[0] @ params["w"] + params["b"]

    return sn.Graph(model, {"w": np.ascontiguousarray(weights), "b": bias}, inputs=12)


def speaker_gru(train: Speech) -> sn.Graph:
    """The model of the demo."""
    file = DATA / "speaker_gru.safetensors"
    weights = load_file(file)
    return classifier(sn.load(file, recurrent_only=True), weights["head.weight"].T, weights["head.bias"])


def speaker_lstm(train: Speech) -> sn.Graph:
    """An LSTM with random weights, whose head is fitted by least squares."""
    random, (mean, deviation) = np.random.default_rng(0), (train.frames.mean(0), train.frames.std(0))
    W = random.normal(size=(12, 256)) * 0.5 / deviation[:, None]
    params = {"W": W, "R": random.normal(size=(64, 256)) * 0.1, "b": -mean @ W}
    params["d"] = np.repeat([0, 1.5, 0, 0], 64)
    layer = sn.cells.rnn("lstm", {name: array.astype("f4") for name, array in params.items()})
    states = last(layer(train.ragged())[0])
    states = np.hstack([states, np.ones((len(states), 1))])
    wanted = states.T @ np.eye(9)[train.speakers]
    head = np.linalg.solve(states.T @ states + 0.01 * np.eye(65), wanted).astype("f4")
    return classifier(layer, head[:-1], head[-1])


@needs_compiler
@pytest.mark.parametrize(
    ("make", "activations"), [(speaker_gru, "int8"), (speaker_lstm, "int16")], ids=["gru", "lstm"]
)
def test_accuracy_on_speakers_is_that_of_float32(make: Any, activations: str, tmp_path: Path):
    train, test = Speech("train"), Speech("test")
    model = make(train)
    samples = train.ragged(90)
    made = build(
        sn.quantize(model, [samples], "int8", activations=activations), tmp_path, name="m", target="c"
    )
    program = made.program
    given = codes(program, test.utterances)
    own = np.stack(in_c(made, given, "-O2"))
    few = test.offsets[2]
    np.testing.assert_array_equal(own[:few], in_numpy(program, given[:2]))
    right = test.correct(last(model(test.ragged())))
    assert right > 90
    assert abs(test.correct(own.view("i2")[test.offsets[1:] - 1]) - right) <= 0.5


# ---- other operations


def many(layer: sn.RNN) -> sn.Graph:
    """A model of all operations that have a form in integers."""

    def model(x: Any, params: Any) -> Any:
        """The model function."""
        y = layer(x)[0]
        z = sn.softmax(y @ params["w"] + params["b"])
        kept = np.maximum(-y, x[..., [0, 1, 2, 3, 3, 2, 1, 0]]) * 0.5
        both = np.concatenate([y[..., ::-1], x], -1)
        rates = np.abs(y) / (np.exp(y) + 1)
        return z, kept, both, rates, np.argmax(z, -1), y.sum(-1) - np.minimum(y, 0.1).max(-1)

    random = np.random.default_rng(1)
    params = {"w": random.normal(size=(8, 5)).astype("f4"), "b": random.normal(size=5).astype("f4")}
    return sn.Graph(model, params, inputs=4)


def gru() -> sn.RNN:
    """A layer."""
    random = np.random.default_rng(2)
    params = sn.cells.CELLS["gru"].parameters(inputs=4, hidden=8)
    own = {name: (random.normal(size=each.shape) * 0.4).astype("f4") for name, each in params.items()}
    return sn.cells.rnn("gru", own)


FRAMES = np.random.default_rng(3).normal(size=(2, 25, 4)).astype("f4")


@pytest.mark.parametrize("activations", ["int8", "int16"])
def test_operations_in_integers_are_near_those_of_float32(activations: str, tmp_path: Path):
    model = many(gru())
    made = build(sn.quantize(model, [FRAMES], "int8", activations=activations), tmp_path, target="c")
    program = made.program
    run, (given,) = FrameRun(program), codes(program, [FRAMES[0]])
    own = [np.stack(each) for each in zip(*(run.step(frame) for frame in given), strict=True)]
    for end, array, right in zip(program.of("output"), own, model(FRAMES), strict=True):
        right = np.asarray(right)[0].reshape(array.shape)
        if end.scale is None:
            assert (array == right).mean() > 0.9
        else:
            assert np.abs(array * end.scale - right).max() < (0.02 if activations == "int8" else 0.01) * max(
                1, np.abs(right).max()
            )


@needs_compiler
def test_c_has_no_floats_and_the_integers_of_numpy_also_where_they_saturate(tmp_path: Path):
    small = sn.quantize(many(gru()), [FRAMES[:, :3]], "int8", activations="int16")
    made = build(small, tmp_path, name="m", target="c")
    program = made.program
    given = [*codes(program, [FRAMES[0], FRAMES[1] * 100]), np.full((5, 4), -32767, "i2")]
    np.testing.assert_array_equal(in_c(made, given, *SANITISED), in_numpy(program, given))
    for file in (made.source, made.header):
        assert file is not None
        text = re.sub(r"/\*.*?\*/", "", file.read_text(), flags=re.DOTALL)
        assert not re.search(r"float|double|math\.h", text)
    assert not program.has_floats


@needs_compiler
def test_macros_of_the_header_are_from_and_to_numbers(tmp_path: Path):
    made = build(
        sn.quantize(gru(), [FRAMES], "int8", activations="int8"), tmp_path, name="m", target="c", inputs=4
    )
    (end,) = made.program.of("input")
    assert end.scale is not None
    numbers = [0.0, 0.9, -0.9, 1e9, -1e9, end.scale * 2.6]
    lines = [f'printf("%d\\n", (int)M_X_INTEGER({number!r}));' for number in numbers]
    lines.append('printf("%.17g\\n", M_Y_NUMBER(-7));')
    (tmp_path / "main.c").write_text(
        '#include "m.h"\n#include <stdio.h>\nint main(void) { ' + " ".join(lines) + " return 0; }\n"
    )
    command = [str(COMPILER), *STRICT, str(tmp_path / "main.c"), "-o", str(tmp_path / "main")]
    subprocess.run(command, check=True)
    *integers, number = subprocess.run(
        [str(tmp_path / "main")], capture_output=True, check=True
    ).stdout.split()
    wanted = np.clip(np.rint(np.array(numbers) / end.scale), -127, 127)
    assert [*map(int, integers)] == wanted.tolist()
    assert float(number) == -7 * (made.program.of("output")[0].scale or 0)


def test_what_is_refused(tmp_path: Path):
    layer = gru()

    def curved(x: Any, params: Any) -> Any:
        """A model with an operation that has no form in integers."""
        return np.log(np.abs(layer(x)[0]) + 1)

    small = sn.quantize(sn.Graph(curved, inputs=4), [FRAMES], "int8", activations="int8")
    with pytest.raises(RefusedError, match=r"the operation log has no form in integers.*compute it outside"):
        build(small, tmp_path, target="c")
    with pytest.raises(InputError, match="give dtype='int8', not 'auto'"):
        sn.quantize(layer, [FRAMES], activations="int16")
    with pytest.raises(InputError, match="activations is 'int8' or 'int16'"):
        sn.quantize(layer, [FRAMES], "int8", activations="int4")
    with pytest.raises(InputError, match="samples have no steps"):
        sn.quantize(layer, [FRAMES[:, :0]], "int8", activations="int16")
    small = sn.quantize(layer, [FRAMES], "int8", activations="int8")
    with pytest.raises(InputError, match="has samples for its scales, which files do not hold"):
        small.save(tmp_path / "small.stepnet")
