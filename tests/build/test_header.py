"""Headers of libraries: whether a sequence goes on in another call, and what the arrays are."""

from pathlib import Path
from platform import machine
from typing import Any

import numpy as np
import pytest
from command_line import stepnet
from same_bits import assert_same_bits
from zoo import rnn_of, sequences

import stepnet as sn
from stepnet.build import build, load
from stepnet.errors import InputError

GRU, W = rnn_of("gru", 8, 4), np.ones((4, 2), "float32")
REVERSED = rnn_of("gru", 8, 4, reverse=True)
BOTH = sn.Bidirectional(rnn_of("gru", 8, 4), rnn_of("gru", 8, 4, reverse=True))
GOES_ON = "To run a sequence in pieces, pass the final memories of a call as the initial ones of the next"
ANEW = "Nothing is kept from call to call: each call begins every sequence anew."
NOT_IN_PIECES = "A sequence cannot be run in pieces: a recurrence begins at its last step"


def text_of(model: Any, folder: Path) -> str:
    """The header of a model's library, on one line."""
    return " ".join(build(model, folder, name="m", inputs=8).header.read_text().split())


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (GRU, GOES_ON),
        (sn.Stack([GRU, rnn_of("lstm", 4, 3)]), GOES_ON),
        (sn.Graph(lambda x, p: GRU(x)[0] @ p, W, inputs=8), ANEW),
        (REVERSED, NOT_IN_PIECES),
        (BOTH, NOT_IN_PIECES),
    ],
    ids=["rnn", "stack", "graph", "reversed", "bidirectional"],
)
def test_a_header_says_whether_a_sequence_goes_on_in_another_call(model: Any, said: str, tmp_path: Path):
    text = text_of(model, tmp_path)
    assert [each for each in (GOES_ON, ANEW, NOT_IN_PIECES) if each in text] == [said]
    assert ("final" in text) == (said != ANEW)


def causal(x: Any, p: Any) -> Any:
    return GRU(sn.conv1d(x, p, padding="causal"))[0]


def ahead(x: Any, p: Any) -> Any:
    return GRU(sn.conv1d(x, p, padding="same"))[0]


def begun(x: Any, p: Any, statics: Any) -> Any:
    return GRU(sn.conv1d(x, p, padding="causal"), statics["h"])[0]


KERNEL = np.random.default_rng(0).normal(size=(8, 8, 3)).astype("float32")


def test_a_graph_of_a_stream_goes_on_in_another_call(tmp_path: Path):
    graph = sn.Graph(causal, KERNEL, inputs=8)
    made = build(graph, tmp_path, stream=True)
    assert GOES_ON in " ".join(made.header.read_text().split())
    library, x = load(made.shared, trust=True), sequences([9, 5, 30], 8)
    first = library({"x": sn.Ragged.from_list([one[:4] for one in x])})
    memories = {name.replace("final", "initial"): first[name] for name in ("final_0", "final_1")}
    then = library({"x": sn.Ragged.from_list([one[4:] for one in x]), **memories})
    for whole, *pieces in zip(graph(x, engine="llvm"), first["y"], then["y"], strict=True):
        assert_same_bits(np.concatenate(pieces), whole)


ZEROS = np.zeros(32, "float32")
WIDE, BIASED = (
    rnn_of("gru", 8, 32),
    sn.RNN(lambda x, h, p: (h / 2 + x + p["b"],) * 2, {"b": ZEROS}, memory=32),
)


@pytest.mark.parametrize(
    "model",
    [
        lambda x, p: WIDE(x)[0] * p + ZEROS,
        lambda x, p: BIASED(WIDE(x)[0] * p)[0],
        lambda x, p: WIDE(BIASED(np.concatenate([x] * 4, -1) * p)[0][:, :8])[0],
    ],
    ids=["after", "named after", "named before"],
)
def test_memories_begin_at_zeros_also_where_a_parameter_has_the_same_zeros(model: Any, tmp_path: Path):
    graph = sn.Graph(model, np.linspace(-1, 1, 32, dtype="float32"), inputs=8)
    library, x = load(build(graph, tmp_path, stream=True).shared, trust=True), sequences([9, 0, 3], 8)
    assert_same_bits(library({"x": x})["y"].values, graph(x, engine="llvm").values)


def test_the_command_builds_the_library_of_a_stream(tmp_path: Path):
    sn.Graph(causal, KERNEL, inputs=8).save(tmp_path / "m.stepnet")
    assert stepnet("build", tmp_path / "m.stepnet", "-o", tmp_path, "--stream")[0] == 0
    assert "const float *initial_0" in (tmp_path / "m.h").read_text()


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (
            sn.Graph(ahead, KERNEL, inputs=8),
            r"no stream: a convolution of it reads 1 later step .*; graph.stream_chunks\(\) takes chunks",
        ),
        (sn.Graph(lambda x, p: x * p, KERNEL[0, :, 0], inputs=8), "the model has no memories"),
        (
            sn.Graph(lambda x, p: GRU(x, p)[0], KERNEL[0, :4, 0], inputs=8),
            "computes the memories that it begins with from its parameters; with stream they begin at zeros",
        ),
        (
            sn.Graph(begun, KERNEL, inputs=8, statics={"unread": 4, "h": 4}),
            "begin with its inputs `h`: leave out stream, and give the final memories",
        ),
        (BOTH, "this model has no stream: a recurrence of it begins at a sequence's last step"),
    ],
    ids=["later steps", "no memories", "a beginning", "a beginning that is given", "bidirectional"],
)
def test_models_without_a_stream_are_refused_where_one_is_asked_for(model: Any, said: str, tmp_path: Path):
    with pytest.raises(InputError, match=said):
        build(model, tmp_path, inputs=8, stream=True)
    assert not list(tmp_path.iterdir())


def test_a_header_says_what_its_example_allocates_after_a_stride(tmp_path: Path):
    halves = sn.Graph(lambda x, p: sn.conv1d(x, p, stride=2), np.ones((3, 8, 3), "float32"), inputs=8)
    assert "y has m_y_steps(3) + m_y_steps(1) = 3 steps." in text_of(halves, tmp_path)


def test_a_header_says_that_each_processor_of_a_family_runs_it(tmp_path: Path):
    text = build(GRU, tmp_path, name="m", inputs=8, target="aarch64").header.read_text()
    assert "for aarch64: every aarch64 processor, under Linux.\n" in text
    assert "On an error *context is NULL." in text


def test_a_header_says_where_the_needed_instructions_are(tmp_path: Path):
    assert (
        f'for native: {machine().replace("_", "-")} with the instructions that m_describe() lists as "needs".'
        in text_of(GRU, tmp_path)
    )
