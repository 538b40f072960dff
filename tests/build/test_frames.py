"""Source code of one frame: in C with strict warnings and sanitisers, it has the bits of NumPy's operations,
and the values of the interpreter.
"""

import json
import subprocess
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import MODEL, refusal, stepnet
from tolerance import assert_close
from zoo import rnn_of

import stepnet as sn
from stepnet.build import build
from stepnet.compiler.targets.frame import STATUS, FrameLoop, FrameProgram, FrameRun
from stepnet.compiler.values import leaves
from stepnet.errors import InputError, RefusedError
from tests.build.frame_models import FRAMES, MODELS, Numbers, frames_of
from tests.build.frame_sources import SANITISED, compiled, in_numpy, main_of, needs_compiler, run_on

CODES = {name: number for number, name in enumerate(STATUS)}


def program_of(model: Any, folder: Path, inputs: Any = None) -> FrameProgram:
    """The program of a model."""
    return build(model, folder, target="c", inputs=inputs).program


@needs_compiler
@pytest.mark.long(every=2)
@pytest.mark.parametrize("name", MODELS)
def test_c_has_the_bits_of_numpys_operations(name: str, tmp_path: Path):
    model, inputs = MODELS[name](Numbers("f4"))
    made = build(model, tmp_path, name="m", target="c", inputs=inputs)
    run_on(compiled(made, main_of(made.program), *SANITISED), made, frames_of(name))


@pytest.mark.parametrize(
    "name", [name for name in MODELS if name not in ("quantized", "pruned_int8", "bfloat16")]
)
def test_frames_have_the_values_of_the_interpreter(name: str, tmp_path: Path):
    model, inputs = MODELS[name](Numbers("f4"))
    exact, given = MODELS[name](Numbers("f8"))[0], frames_of(name)
    wide = given.astype("f8") if given.dtype.kind == "f" else given
    right = exact(wide[None], engine="interpret")
    right = right if isinstance(exact, sn.Graph) else right[0]
    outputs = in_numpy(program_of(model, tmp_path, inputs), given)
    for own, wanted in zip(outputs, leaves(right), strict=True):
        wanted = np.asarray(wanted)[0]
        assert_close(own.reshape(wanted.shape), wanted, FRAMES, 32)


def test_quantized_frames_have_the_integers_of_the_interpreter(tmp_path: Path):
    model, inputs = MODELS["quantized"](Numbers("f4"))
    given = frames_of("quantized")
    given[3, 2], given[4] = np.inf, 0
    right = np.asarray(model(given[None], engine="interpret")[0])[0]
    (own,) = in_numpy(program_of(model, tmp_path, inputs), given)
    # One other integer would be a hundred times the tolerance away.
    assert np.isnan(right[3:]).all()
    assert np.isnan(own[3:]).all()
    assert_close(own[:3], right[:3], 3, 32)


@pytest.mark.parametrize("name", MODELS)
def test_arrays_share_memory_unless_they_are_needed_together(name: str, tmp_path: Path):
    model, inputs = MODELS[name](Numbers("f4"))
    program = program_of(model, tmp_path, inputs)
    scratch = {each.name: each for each in program.of("scratch")}
    loops = [used(loop) for loop in program.loops]
    uses = {name: [place for place, names in enumerate(loops) if name in names] for name in scratch}
    for one, two in combinations(scratch.values(), 2):
        together = min(uses[one.name]) <= max(uses[two.name]) and min(uses[two.name]) <= max(uses[one.name])
        apart = one.offset + one.bytes <= two.offset or two.offset + two.bytes <= one.offset
        assert apart or not together, (str(one), str(two))
    assert program.arena_bytes <= sum(-(-each.bytes // 8) * 8 for each in scratch.values())


def used(loop: FrameLoop) -> set[str]:
    """The names of the arrays that a loop reads or writes."""
    return {view.buffer for view, _, _ in loop.views}


@needs_compiler
def test_an_index_outside_of_its_table_changes_nothing(tmp_path: Path):
    def step(word: Any, h: Any, params: Any) -> Any:
        """A step that adds up rows of a table."""
        h = h + params["T"][word]
        return h, h

    table = np.array([[1, 2], [3, 4]], "float32")
    model = sn.RNN(step, {"T": table}, memory=2, inputs=sn.Spec((), "int32"))
    made = build(model, tmp_path, name="m", target="c")
    main = """
#include "m.h"
#include <stdio.h>
static m_context one;
int main(void)
{
    const int32_t given[4] = {1, 2, -3, -2};
    float y[2] = {0.0F, 0.0F};
    (void)m_reset(&one);
    for (size_t at = 0U; at < 4U; at++) {
        const int status = m_step(&one, &given[at], y);
        printf("%d %g %g\\n", status, (double)y[0], (double)y[1]);
    }
    return 0;
}
"""
    printed = subprocess.run(
        [str(compiled(made, main, *SANITISED))], capture_output=True, text=True, check=True
    )
    index = CODES["INDEX"]
    assert printed.stdout == f"0 3 4\n{index} 3 4\n{index} 3 4\n0 4 6\n"
    with pytest.raises(InputError, match="outside the rows"):
        FrameRun(made.program).step(np.array(2, "int32"))


def test_memories_begin_as_in_a_stream(tmp_path: Path):
    def step(x: Any, h: Any, params: Any, index: Any) -> Any:
        """A step that adds up its inputs, each times its number."""
        h = h + x * index.astype("f4")[:, None]
        return h, h

    sums = sn.RNN(step, {}, memory=2, inputs=2)

    def model(x: Any, params: Any) -> Any:
        """Sums that begin with a parameter."""
        return sums(x, initial=params["begin"] * 2)[0]

    graph = sn.Graph(model, {"begin": np.array([1, 2], "float32")}, inputs=2)
    given = np.ones((3, 2), "f4")
    (own,) = in_numpy(program_of(graph, tmp_path), given)
    np.testing.assert_array_equal(own, graph(given[None])[0])
    np.testing.assert_array_equal(own, [[2, 4], [3, 5], [5, 7]])


def refused(model: Any, folder: Path, **options: Any) -> str:
    """The message that refuses a model."""
    with pytest.raises((InputError, RefusedError)) as error:
        build(model, folder, target="c", **options)
    return str(error.value)


def test_what_is_refused(tmp_path: Path):
    gru = rnn_of("gru", 3, 8)
    message = refused(gru, tmp_path, inputs=3, ram=100)
    assert message.startswith(
        "the model needs 232 bytes of RAM, and there are 100: 32 for memories (memory_h 32)"
    )
    assert "constants alone, and there are 100: k_R 768" in refused(gru, tmp_path, inputs=3, flash=100)
    assert refused(gru, tmp_path, inputs=3, weights="beside") == (
        "source code has its weights inside: leave out weights='beside'"
    )
    assert "ram is a number of bytes, not -1" in refused(gru, tmp_path, inputs=3, ram=-1)
    counted = sn.RNN(lambda x, h, p: (x @ p, h), np.ones((3, 2), "i4"), memory=3)
    assert "its numbers are integers" in refused(counted, tmp_path, inputs=sn.Spec(3, "int32"))
    backward = sn.RNN(lambda x, h, p: (x + h, x), np.ones(3, "f4"), memory=3, reverse=True)
    assert refused(backward, tmp_path, inputs=3).startswith("this model has no stream: ")
    begun = sn.Graph(lambda x, p, statics: gru(x, initial=statics)[0], {}, inputs=3, statics=8)
    message = refused(begun, tmp_path)
    assert message.startswith("the memories of the model begin with its inputs `")
    assert message.endswith("leave these inputs out of the model")
    half = sn.RNN(lambda x, h, p: (x.astype("f4") + h * p, h), np.ones(3, "f4"), memory=3)
    assert "cast the model to float32" in refused(half, tmp_path, inputs=sn.Spec(3, "float16"))
    with pytest.raises(InputError, match="limits of source code"):
        build(gru, tmp_path, inputs=3, flash=1)
    assert not list(tmp_path.iterdir())


def test_sizes_are_those_of_the_arrays(tmp_path: Path):
    made = build(rnn_of("gru", 3, 8), tmp_path, target="c", inputs=3)
    samples = [np.ones((1, 4, 3), "f4")]
    small = build(sn.quantize(rnn_of("gru", 3, 8), samples, "int8"), tmp_path / "small", target="c", inputs=3)
    # With two biases, and two scales of columns; words of weights have four inputs for three.
    assert small.sizes.constant_bytes == (4 + 8) * 24 + 4 * 24 * 4
    assert made.sizes.constant_bytes == 4 * (3 * 24 + 8 * 24 + 2 * 24)
    assert made.sizes.multiply_adds == 3 * 24 + 8 * 24
    assert (made.sizes.memory_bytes, made.sizes.arena_bytes) == (4 * 8, 4 * 2 * 24)
    manifest = json.loads(made.manifest.read_text())
    assert [each["name"] for each in manifest["arrays"]] == ["x", "y", "memory_h"]
    assert manifest["sizes"]["multiply_adds"] == made.sizes.multiply_adds
    assert made.header is not None
    assert f"#define MODEL_RAM_BYTES {made.sizes.ram_bytes}U" in made.header.read_text()


def test_the_command_builds_source_code(tmp_path: Path):
    given = ["build", "--recurrent-only", MODEL, "--target", "c", "-o", tmp_path, "--name", "gru"]
    code, printed, errors = stepnet(*given, "--json", "--ram", 100_000)
    assert (code, errors) == (0, "")
    answer = json.loads(printed)
    assert Path(answer["source"]).name == "gru.c"
    assert answer["sizes"]["parts"][0]["part"]
    assert refusal(*given, "--force", "--flash", 1000).startswith("the model needs ")
    code, printed, _ = stepnet(*given, "--force")
    assert f"ram bytes:      {answer['sizes']['ram_bytes']}\n" in printed


def test_names_of_arrays_are_none_of_the_codes_own(tmp_path: Path):
    def step(x: Any, h: Any, params: Any) -> Any:
        """A step whose inputs have the names of registers and tables."""
        total = x["t0"] + x["u0"] * x["k_w"] + h * params
        return {"frame": total, "MODEL": total * 2}, total

    model = sn.RNN(step, np.ones(2, "f4"), memory=2, inputs={"t0": 2, "u0": 2, "k_w": 2})
    names = [each.name for each in program_of(model, tmp_path).of("input")]
    assert names == ["a_t0", "a_u0", "a_k_w"]


NAMED = (
    *("int", "float", "class", "NULL", "NAN", "SIZE_MAX", "FLT_MAX", "bool", "true", "size_t", "fabsf"),
    *("restrict", "linux", "x", "X", "\u00e9", "\u00b2", "9"),
)


@needs_compiler
def test_names_of_arrays_are_no_words_of_c(tmp_path: Path):
    def step(x: Any, h: Any, params: Any) -> Any:
        """A step whose inputs and parameters have names with a meaning in C, or of no letters."""
        total = sum((np.abs(x[name]) * params[name] for name in NAMED), h)
        return total, total

    params = {name: np.ones(number + 2, "f4")[:2] for number, name in enumerate(NAMED)}
    made = build(
        sn.RNN(step, params, memory=2, inputs=dict.fromkeys(NAMED, 2)), tmp_path, name="m", target="c"
    )
    names = [each.name.upper() for each in made.program.of("input")]
    assert len({*names}) == len(NAMED)
    compiled(made, '#include "m.h"\nint main(void) { return 0; }\n', "-Wshadow", "-std=gnu99")


@needs_compiler
def test_source_of_arrays_that_no_loop_uses_has_no_warnings(tmp_path: Path):
    def step(x: Any, h: Any, params: Any) -> Any:
        """A step with an input that it does not read, and a memory that stays as it is."""
        return x["read"] + h["sum"], {"sum": h["sum"] + x["read"], "kept": h["kept"]}

    model = sn.RNN(step, memory={"sum": 2, "kept": 3}, inputs={"read": 2, "unread": 2})
    made = build(model, tmp_path, name="m", target="c")
    compiled(made, '#include "m.h"\nint main(void) { return 0; }\n')
