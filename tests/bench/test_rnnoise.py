"""RNNoise's network as a step, beside a library with RNNoise's interface that is plain loops in C."""

import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from tolerance import assert_close

from bench.devices import native_counts, rnnoise
from stepnet.errors import InputError

LIKE = Path(__file__).with_name("rnnoise_like")
needs_compiler = pytest.mark.skipif(shutil.which("cc") is None, reason="cc is missing")
needs_valgrind = pytest.mark.skipif(shutil.which("valgrind") is None, reason="valgrind is missing")


def data_text(seed: int = 0) -> str:
    """The text of a file with random weights, in the form of RNNoise's."""
    random, lines = np.random.default_rng(seed), ['#include "rnn.h"']
    for layer, (inputs, outputs) in rnnoise.SHAPES.items():
        parts = {"weights": inputs * outputs, "bias": outputs}
        if layer.endswith("gru"):
            parts["recurrent_weights"] = outputs * outputs // 3
        for part, size in parts.items():
            numbers = np.clip(np.rint(random.normal(size=size) * 24), -128, 127).astype(int)
            lines.append(
                f"const rnn_weight {layer}_{part}[{size}] = {{\n   {', '.join(map(str, numbers))}\n}};"
            )
    return "\n".join(lines) + "\n"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A folder with that library."""
    folder = tmp_path / "source"
    shutil.copytree(LIKE, folder)
    (folder / "src" / "rnn_data.c").write_text(data_text())
    return folder


@needs_compiler
def test_the_step_net_is_the_network_of_the_library(source: Path, tmp_path: Path):
    rnn = rnnoise.step_net(rnnoise.weights_in(data_text()))
    known = rnnoise.heard(source, tmp_path, rnnoise.sound(0.4, 2))
    assert known.outputs.std(axis=0).min() > 0.001
    code = rnnoise.ours(rnn, "float32", tmp_path, known.features, known.features)
    built = rnnoise.outputs_of(code, tmp_path, len(known.features))
    assert_close(built, known.outputs, len(built), 96)


@needs_compiler
@needs_valgrind
def test_the_command_counts_both(source: Path, capsys: pytest.CaptureFixture[str]):
    kinds = "float32;int8 weights, int16 activations"
    rnnoise.command(source, frames=4, cores="", flags="-O2", kinds=kinds)
    lines = [line.strip("| ").split(" | ") for line in capsys.readouterr().out.splitlines()]
    assert lines[0][1] == "-O2"
    theirs, ours, whole = ([float(text.replace(",", "")) for text in line[1:]] for line in lines[2:])
    assert lines[3][0] == "step-net: float32"
    assert 86_952 < ours[0] < whole[0] < theirs[0]
    assert whole[1] < 100_000 < ours[1]
    assert theirs[2] == 0 < ours[2] < 1e-5 < whole[2] < 0.1


def test_weights_of_another_network_are_refused():
    text = data_text().replace("const rnn_weight vad_output_bias[1]", "const rnn_weight other[1]")
    message = "rnn_data.c has none for vad_output_bias, and 1 numbers are expected: the network is that of"
    with pytest.raises(InputError, match=re.escape(message)):
        rnnoise.weights_in(text)
    text = re.sub(r"(vad_gru_weights\[\d+\] = \{\n) *-?\d+,", r"\1", data_text())
    with pytest.raises(InputError, match=r"rnn_data\.c has 1727 for vad_gru_weights, and 1728 numbers"):
        rnnoise.weights_in(text)


def test_a_folder_without_the_library_is_refused(tmp_path: Path):
    with pytest.raises(InputError, match=r"there is no .*rnn_data\.c: --source is a folder with RNNoise 0"):
        rnnoise.command(tmp_path)


@needs_compiler
@needs_valgrind
def test_instructions_within_a_function_are_counted(tmp_path: Path):
    (tmp_path / "m.c").write_text(
        '__attribute__((noinline)) void inside(void) { __asm__ volatile(".rept 1000\\nnop\\n.endr"); }\n'
        'int main(void) { for (int i = 0; i < 1000; i++) __asm__ volatile("nop");\n'
        "    inside(); inside(); return 0; }\n"
    )
    program = rnnoise.compiled(tmp_path / "m", [tmp_path / "m.c"], ["-O1"])
    assert 2_000 < native_counts.executed(program, "inside") <= 2_010
    with pytest.raises(InputError, match="m never called outside, or it was inlined"):
        native_counts.executed(program, "outside")
