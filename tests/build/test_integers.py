"""Models in integers alone: accuracy on recorded speech, the same integers in C and Python, no floats in the
source, and what is refused.
"""

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stepnet as sn
from bench.devices.accuracy import MODELS, Speech, last
from stepnet.build import DeviceBuild, build
from stepnet.compiler.targets.frame import FrameProgram, FrameRun, codes_of
from stepnet.errors import IndexOutsideError, InputError, RefusedError
from tests.build.integer_models import FRAMES, codes, gru, many

COMPILER = shutil.which("cc")
needs_compiler = pytest.mark.skipif(COMPILER is None, reason="there is no C compiler, cc")
STRICT = ["-std=c99", "-Wall", "-Wextra", "-Wconversion", "-pedantic", "-Werror"]
SANITISED = ["-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
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
        outputs="\n".join(
            f"static {each.dtype.replace('bool', 'uint8')}_t {each.name}[{each.size}];" for each in outputs
        ),
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


@needs_compiler
@pytest.mark.parametrize(("name", "activations"), [("GRU of the demo", "int8"), ("LSTM 64", "int16")])
def test_accuracy_on_speakers_is_that_of_float32(name: str, activations: str, tmp_path: Path):
    pytest.importorskip("pyarrow")
    train, test = Speech("train"), Speech("test")
    model = MODELS[name](train)
    samples = train.ragged(90)
    small = sn.quantize(model, [samples], "int8", activations=activations)
    made = build(small, tmp_path, name="m", target="c")
    program = made.program
    given = codes(program, test.utterances)
    own = np.stack(in_c(made, given, "-O2"))
    few = test.offsets[2]
    np.testing.assert_array_equal(own[:few], in_numpy(program, given[:2]))
    scores = small(test.ragged())
    scale = program.of("output")[0].scale or 0
    np.testing.assert_array_equal(scores.values, np.float32(own.view("i2") * scale))
    right = test.correct(last(model(test.ragged())))
    assert right > 90
    assert abs(test.correct(small(test.ragged(), last_only=True)) - right) <= 0.5


# ---- other operations


@pytest.mark.parametrize("activations", ["int8", "int16"])
def test_operations_in_integers_are_near_those_of_float32(activations: str):
    model = many(gru())
    own = sn.quantize(model, [FRAMES], "int8", activations=activations)(FRAMES)
    for array, right in zip(own, model(FRAMES), strict=True):
        assert (array.shape, array.dtype) == (right.shape, right.dtype)
        if right.dtype.kind in "ib":
            assert (array == right).mean() > 0.9
        else:
            most = (0.02 if activations == "int8" else 0.01) * max(1, np.abs(right).max())
            assert np.abs(array - right).max() < most


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


def test_a_sum_that_is_computed_slice_by_slice_has_the_integers_of_the_whole(tmp_path: Path):
    random = np.random.default_rng(5)
    params = {"W": random.normal(size=(7, 40)).astype("f4"), "b": random.normal(size=40).astype("f4")}
    layer = sn.cells.rnn("gru", numbers_of_gru(4))

    def gated(x: Any, params: Any) -> tuple[Any, Any]:
        """The product of two gates, and the sum that they are made of."""
        sums = layer(x)[0] @ params["W"] + params["b"]
        return np.tanh(sums[..., 24:]) * sums[..., :16], sums

    models = sn.Graph(gated, params, inputs=4), sn.Graph(lambda x, p: gated(x, p)[0], params, inputs=4)
    whole, sliced = (sn.quantize(model, [FRAMES], "int8", activations="int8") for model in models)
    np.testing.assert_array_equal(sliced(FRAMES), whole(FRAMES)[0])
    program = build(sliced, tmp_path, target="c").program
    assert 40 not in [each.size for each in program.of("scratch")]


def tagger(table: np.ndarray) -> sn.Graph:
    """A model of words, whose vectors are rows of a table."""
    layer = sn.cells.rnn("gru", numbers_of_gru(table.shape[1]))
    return sn.Graph(lambda words, params: layer(params[words])[0], table, inputs=sn.Spec((), "int32"))


def numbers_of_gru(inputs: int) -> dict[str, np.ndarray]:
    """The parameters of a layer."""
    random = np.random.default_rng(4)
    params = sn.cells.CELLS["gru"].parameters(inputs=inputs, hidden=7)
    return {name: (random.normal(size=each.shape) * 0.4).astype("f4") for name, each in params.items()}


@needs_compiler
@pytest.mark.parametrize("activations", ["int8", "int16"])
def test_rows_of_a_table_have_the_dtype_of_activations(activations: str, tmp_path: Path):
    random = np.random.default_rng(6)
    model = tagger(random.normal(size=(30, 5)).astype("f4"))
    words = random.integers(-30, 30, (2, 40)).astype("i4")
    small = sn.quantize(model, [words], "int8", activations=activations)
    assert np.abs(small(words) - model(words)).max() < 0.02
    made = build(small, tmp_path, name="m", target="c")
    assert 150 * np.dtype(activations).itemsize in [each.bytes for each in made.program.of("constant")]
    np.testing.assert_array_equal(in_c(made, [*words], *SANITISED), in_numpy(made.program, [*words]))
    words[1, 3] = 30
    with pytest.raises(IndexOutsideError, match=r"30.*sequence 1.*30 rows"):
        small(words)


@needs_compiler
def test_macros_of_the_header_are_from_and_to_numbers(tmp_path: Path):
    made = build(sn.quantize(gru(), [FRAMES], "int8", activations="int8"), tmp_path, name="m", target="c")
    (end,) = made.program.of("input")
    assert end.scale is not None
    numbers = [0.0, 0.9, -0.9, 1e9, -1e9, end.scale * 2.6, end.scale * 2.5, -end.scale * 2.5]
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
    assert [*map(int, integers)] == [
        0,
        *(round(each / end.scale) for each in (0.9, -0.9)),
        127,
        -127,
        3,
        3,
        -3,
    ]
    assert [*map(int, integers)] == codes_of(end, np.array(numbers)).tolist()
    assert float(number) == -7 * (made.program.of("output")[0].scale or 0)


def test_what_is_refused(tmp_path: Path):
    layer = gru()

    def curved(x: Any, params: Any) -> Any:
        """A model with an operation that has no form in integers."""
        return np.arctan(layer(x)[0])

    with pytest.raises(
        RefusedError, match=r"the operation arctan has no form in integers.*compute it outside"
    ):
        sn.quantize(sn.Graph(curved, inputs=4), [FRAMES], "int8", activations="int8")
    with pytest.raises(InputError, match="give dtype='int8', not 'auto'"):
        sn.quantize(layer, [FRAMES], activations="int16")
    with pytest.raises(InputError, match="activations is 'int8' or 'int16'"):
        sn.quantize(layer, [FRAMES], "int8", activations="int4")
    with pytest.raises(InputError, match="samples have no steps"):
        sn.quantize(layer, [FRAMES[:, :0]], "int8", activations="int16")
    wrong = sn.Graph(lambda x, params: (layer(x)[0], x @ params), np.full((4, 2), np.inf, "f4"), inputs=4)
    with pytest.raises(InputError, match="NaN"):
        sn.quantize(wrong, [FRAMES], "int8", activations="int8")
    ends = sn.RNN(
        lambda x, h, p: (h + x @ p, h), np.ones((4, 3), "f4"), memory=3, until=lambda y, h: y[..., 0] > 9
    )
    with pytest.raises(InputError, match=r"end early \(until=\) are not for activations="):
        sn.quantize(ends, [FRAMES], "int8", activations="int8")
