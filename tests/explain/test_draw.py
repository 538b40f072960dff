"""Drawings of graphs: as text, and as pictures."""

import xml.etree.ElementTree as ElementTree
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from installed_onednn import missing_onednn
from zoo import rnn_of

import stepnet as sn
from stepnet.errors import FileError, InputError

SVG = "{http://www.w3.org/2000/svg}"


gru = partial(rnn_of, "gru")


def tagger() -> sn.Graph:
    layer = sn.Bidirectional(gru(8, 16), gru(8, 16, reverse=True))

    def model(words: Any, params: Any) -> Any:
        h, _ = layer(params["table"][words])
        return {"tags": h @ params["W"], "mood": np.tanh(sn.reduce(h, "mean") @ params["v"])}

    shapes = {"table": (100, 8), "W": (32, 5), "v": (32, 1)}
    params = {name: np.zeros(shape, "float32") for name, shape in shapes.items()}
    return sn.Graph(model, params, inputs=sn.Spec((), "int64"))


TEXT = """\
x                         i64[] at a step
GRU, 16 units             x -> %1 f32[16]  (llvm)
    gather
GRU, 16 units, backwards  x -> %2 f32[16]  (llvm)
    gather
operations of a step      %1, %2 -> %3 f32[32], tags f32[5]  (llvm)
    concatenate, matmul
mean over steps           %3 -> %4 f32[32]  (numpy)
operations of a sequence  %4 -> mood f32[1]  (llvm)
    matmul, tanh"""


def test_the_text_has_parts_cells_engines_and_sizes() -> None:
    assert tagger().draw() == TEXT


def test_another_engine() -> None:
    assert "(interpret)" in tagger().draw(engine="interpret")
    with pytest.raises(InputError, match="nonsense"):
        tagger().draw(engine="nonsense")


PLACED = """\
x                         i64[] at a step
operations of a step      x -> %1 f32[8]  (llvm)
    gather
GRU, 16 units             %1 -> %2 f32[16]  (onednn)
GRU, 16 units, backwards  %1 -> %3 f32[16]  (onednn)
operations of a step      %2, %3 -> %4 f32[32], tags f32[5]  (llvm)
    concatenate, matmul
mean over steps           %4 -> %5 f32[32]  (numpy)
operations of a sequence  %5 -> mood f32[1]  (llvm)
    matmul, tanh"""


@pytest.mark.skipif(missing_onednn() is not None, reason=str(missing_onednn()))
def test_each_part_has_the_engine_that_runs_it() -> None:
    assert tagger().draw(engine=("onednn", "llvm")) == PLACED
    assert tagger().draw(engine="onednn") == PLACED.replace("llvm", "no engine")


def test_the_steps_of_a_loop_have_engines_too() -> None:
    def outer(x: Any, h: Any, params: Any) -> Any:
        h = h + sn.RNN(leaky, memory=3)(x, initial=h)[1]
        return h, h

    rnn = sn.RNN(outer, memory=3)
    graph = sn.Graph(lambda x, params: rnn(x)[1], inputs=sn.Spec(3, "float32", 1))
    assert graph.draw(engine=("onednn", "interpret")).splitlines()[1:] == [
        "repeat for each sequence  -> %1 f32[3]  (numpy)",
        "recurrence of f32[3]      x, %1 -> output f32[3]  (interpret)",
        "    add",
    ]


def test_a_value_repeated_at_inner_steps() -> None:
    def model(x: Any, params: Any) -> Any:
        return x * sn.expand(sn.reduce(x, "max"), x)

    graph = sn.Graph(model, inputs=sn.Spec(3, "float32", 1))
    assert graph.draw().splitlines()[1:] == [
        "max over steps                  x -> %1 f32[3]  (numpy)",
        "operations of rows/steps/words  x, %1 -> output f32[3]  (llvm)",
        "    repeat at rows/steps/words",
        "    multiply",
    ]


def leaky(x: Any, h: Any, params: Any) -> Any:
    h = 0.5 * h + np.tanh(x)
    return h, h


def test_own_cells_show_their_memory_and_all_that_they_do() -> None:
    rnn = sn.RNN(leaky, memory=3, reverse=True)
    graph = sn.Graph(lambda x, params: rnn(x)[1], inputs=sn.Spec(3, "float32"))
    assert graph.draw().splitlines()[1:] == [
        "recurrence of f32[3], backwards  x -> output f32[3]  (llvm)",
        "    multiply, tanh, add",
    ]


def test_an_input_may_be_an_output() -> None:
    graph = sn.Graph(lambda x, params: {"same": x, "twice": 2 * x}, inputs=sn.Spec(3, "float32"))
    assert graph.draw().splitlines() == [
        "x                     f32[3] at a step",
        "operations of a step  x -> twice f32[3]  (llvm)",
        "    multiply",
    ]


def test_recurrences_inside_recurrences() -> None:
    def outer(x: Any, h: Any, params: Any) -> Any:
        h = h + sn.reduce(x, "mean")
        return h, h

    rnn = sn.RNN(outer, memory=3)
    graph = sn.Graph(lambda x, params: rnn(x)[1], inputs=sn.Spec(3, "float32", 1))
    assert "recurrence of f32[3]" in graph.draw()


def test_pictures_are_whole_and_show_every_box(tmp_path: Path) -> None:
    graph = tagger()
    assert graph.draw(tmp_path / "m.svg") == TEXT
    root = ElementTree.parse(tmp_path / "m.svg").getroot()
    assert len(root.findall(f"{SVG}rect")) == 6
    texts = [text.text for text in root.findall(f"{SVG}text")]
    for wanted in (
        "x",
        "GRU, 16 units",
        "GRU, 16 units, backwards",
        "llvm",
        "tags f32[5]",
        "mood f32[1]",
        "f32[32]",
    ):
        assert wanted in texts
    fills = [box.get("fill") for box in root.findall(f"{SVG}rect")]
    assert len(set(fills)) == 6
    graph.draw(tmp_path / "m.html")
    page = (tmp_path / "m.html").read_text(encoding="utf-8")
    assert (tmp_path / "m.svg").read_text(encoding="utf-8").strip() in page
    assert "default-src 'none'" in page


def test_boxes_do_not_lie_on_one_another(tmp_path: Path) -> None:
    tagger().draw(tmp_path / "m.svg")
    boxes = [
        tuple(float(str(box.get(name))) for name in ("x", "y", "width", "height"))
        for box in ElementTree.parse(tmp_path / "m.svg").getroot().findall(f"{SVG}rect")
    ]
    for place, (x, y, width, height) in enumerate(boxes):
        for left, top, across, down in boxes[:place]:
            assert x >= left + across or left >= x + width or y >= top + down or top >= y + height


def test_names_are_escaped(tmp_path: Path) -> None:
    graph = sn.Graph(lambda x, params: {"<b>&": x * 2}, inputs=sn.Spec(3, "float32"))
    graph.draw(tmp_path / "m.svg")
    root = ElementTree.parse(tmp_path / "m.svg").getroot()
    assert "<b>& f32[3]" in [text.text for text in root.findall(f"{SVG}text")]


def test_wrong_paths(tmp_path: Path) -> None:
    graph = tagger()
    with pytest.raises(InputError, match=r"a drawing is written as \.svg or \.html, not as m\.png"):
        graph.draw(tmp_path / "m.png")
    graph.draw(tmp_path / "m.svg")
    with pytest.raises(FileError, match="there already; force=True replaces it"):
        graph.draw(tmp_path / "m.svg")
    graph.draw(tmp_path / "m.svg", force=True)
    with pytest.raises(FileError, match="cannot be written"):
        graph.draw(tmp_path / "none" / "m.svg")
    wrong: Any
    for wrong in (3, b"m.svg", [tmp_path / "m.svg"]):
        with pytest.raises(InputError, match="path is a text or a Path, not "):
            graph.draw(wrong)
    with pytest.raises(InputError, match="path has a character of number 0"):
        graph.draw(tmp_path / "m\0.svg")
    with pytest.raises(InputError, match="not known yet"):
        sn.Graph(lambda x, params: x).draw()
