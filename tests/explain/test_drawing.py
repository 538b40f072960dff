"""Every number of every layout is drawn once, as what it is; of large arrays the same few on both sides."""

from math import prod

import numpy as np
import pytest
from index_maps import ParameterBlock, index_map
from rich.text import Text

from stepnet.explain.drawing import ALL, SOME, Drawing, drawings, numbers_left_out
from stepnet.explain.equations import equations
from stepnet.explain.notation_words import explain_notation
from stepnet.explain.ties import ConversionSide
from stepnet.explain.weights import signs, weights_text
from stepnet.layout import Record, Semantics, Sizes, records
from stepnet.layout.notation import axes_text, parse, terms

ALL_RECORDS = [pytest.param(record, id=name) for name, record in records().items()]


def arrays_of(record: Record, sizes: Sizes) -> dict[str, np.ndarray]:
    """Arrays whose numbers tell where they are."""
    found: dict[str, np.ndarray] = {}
    for number, (name, shape) in enumerate(record.shapes(sizes).items()):
        found[name] = np.arange(prod(shape), dtype="float64").reshape(shape) + 1e7 * number
    return found


def drawn(record: Record, sizes: Sizes) -> list[Drawing]:
    """The drawing of such arrays."""
    return list(drawings(arrays_of(record, sizes), record, sizes))


def projected(record: Record, size: int) -> int | None:
    """The size of a projection, where there is one."""
    return size if record.projection else None


@pytest.mark.parametrize("record", ALL_RECORDS)
def test_each_number_is_drawn_once_as_what_it_is(record: Record):
    for sizes in (Sizes(2, 3, projected(record, 2)), Sizes(3, 3, projected(record, 3), 2, 2)):
        if record.misfit(sizes):
            continue
        arrays, places = arrays_of(record, sizes), index_map(record, sizes)
        for drawing in drawn(record, sizes):
            found = [cell.at for cell in drawing.cells]
            assert sorted(found) == list(np.ndindex(drawing.shape)), drawing.name
            assert numbers_left_out(drawing) == 0
            for cell in drawing.cells:
                assert arrays[drawing.name][cell.at] == cell.value
                name, numbers = places[cell.block]
                assert (name, numbers[cell.index]) == (drawing.name, cell.value % 1e7)


@pytest.mark.parametrize("record", ALL_RECORDS)
def test_of_large_arrays_some_numbers_of_every_block_are_drawn(record: Record):
    sizes = Sizes(300, 500, projected(record, 200))
    arrays, places = arrays_of(record, sizes), index_map(record, sizes)
    for drawing in drawings(arrays, record, sizes):
        assert len(drawing.cells) <= len(SOME) ** 2 * 2 * len(places)
        assert numbers_left_out(drawing) == prod(drawing.shape) - len({cell.at for cell in drawing.cells}) > 0
        for cell in drawing.cells:
            assert places[cell.block][1][cell.index] == cell.value % 1e7
        held = {block for block, (name, _) in places.items() if name == drawing.name}
        assert {cell.block for cell in drawing.cells} == held


def test_gaps_are_where_numbers_are_left_out():
    (kernel, *_) = drawn(records()["keras.gru"], Sizes(ALL + 1, 20))
    (panel,) = kernel.panels
    assert panel.columns[:6] == ("0", "1", "2", "", "19", "20")
    assert [line.label for line in panel.lines] == ["0", "1", "2", "", str(ALL)]
    assert set(panel.lines[3].cells) == {None}
    assert [cell is None for cell in panel.lines[0].cells[:6]] == [False, False, False, True, False, False]


def test_both_sides_draw_the_same_numbers():
    sizes = Sizes(100, 64)
    sides = [
        {(cell.block, cell.index) for one in drawn(records()[name], sizes) for cell in one.cells}
        for name in ("torch.gru", "cudnn.gru", "onnx.gru", "keras.gru")
    ]
    assert sides[0] == sides[1] == sides[2] == sides[3]


def test_layers_and_directions_are_panels():
    (weights, *_) = drawn(records()["onednn.lstm"], Sizes(3, 3, layers=2, directions=1))
    assert [panel.title for panel in weights.panels] == ["[0, 0]", "[1, 0]"]
    assert {cell.block.layer for line in weights.panels[1].lines for cell in line.cells if cell} == {1}


def test_blocks_between_one_another_are_wrapped():
    from stepnet.layout import Record

    mine = Record("mine.lstm", "lstm", {"w": "W[(h g:ifgo) x]; R[(h g:ifgo) k]; b[(h g:ifgo)]"})
    (drawing,) = drawn(mine, Sizes(1, 3))
    assert len(drawing.cells) == 12 + 36 + 12
    assert {len(line.cells) for line in drawing.panels[0].lines} == {12}


def test_a_vector_has_as_many_numbers_on_a_line_as_all_gates_have_units():
    """Nine for a GRU of 3 hidden units, as the drawings have it that the layouts were first written from."""
    (drawing,) = drawn(records()["cudnn.gru"], Sizes(2, 3))
    (panel,) = drawing.panels
    assert [len(line.cells) for line in panel.lines] == [9] * 7
    assert [line.label for line in panel.lines] == ["0", "9", "18", "27", "36", "45", "54"]
    assert panel.columns == tuple("012345678")
    whats = [[str(cell.block) for cell in line.cells if cell] for line in panel.lines]
    assert whats[1] == ["W_z"] * 3 + ["W_n"] * 6
    assert whats[5] == ["b_r"] * 3 + ["b_z"] * 3 + ["b_n"] * 3
    (wide,) = drawn(records()["cudnn.lstm"], Sizes(8, 8))
    assert {len(line.cells) for line in wide.panels[0].lines} == {16}, "two of four gates: more is too wide"
    (large,) = drawn(records()["cudnn.gru"], Sizes(100, 64))
    assert [cell.index if cell else None for cell in large.panels[0].lines[0].cells] == [
        *((0, 0), (0, 1), (0, 2), None, (0, 99)),
    ]


# ---- equations ---------------------------------------------------------------------------------------------


def test_equations_say_what_there_is():
    def of(name: str, **semantics: object) -> list[str]:
        record = records()[name]
        blocks = index_map(record, Sizes(2, 3, projected(record, 2)))
        return equations(record.settled(semantics), blocks)

    assert of("keras.gru_reset_before") == [
        "r = sigmoid(W_r x + b_r + R_r h)",
        "z = sigmoid(W_z x + b_z + R_z h)",
        "n = tanh(W_n x + b_n + R_n (r h))",
        "h' = z h + (1 - z) n",
    ]
    assert of("tf1.lstm", forget_bias=1.0)[1] == "f = sigmoid(W_f x + b_f + R_f h + 1 + p_f c)"
    assert of("torch.lstm_projection")[-1] == "h' = P (o tanh(c'))"
    assert of("keras.rnn", candidate_activation="linear") == ["n = W_n x + b_n + R_n h", "h' = n"]


def test_equations_of_unusual_functions():
    coupled = Semantics("lstm", coupled=True, cell_clip=3.0, output_activation="linear", clip=5.0)
    lines = equations(coupled, [])
    assert lines[0] == "i = 1 - f"
    assert lines[2] == "g = tanh(clip(W_g x + R_g h, -5, 5))"
    assert lines[-2:] == ["c' = clip(f c + i g, -3, 3)", "h' = o c'"]
    assert equations(Semantics("mgu", update="write", reset="before"), [])[1:] == [
        "n = tanh(W_n x + R_n (f h))",
        "h' = (1 - f) h + f n",
    ]


# ---- the terminal ------------------------------------------------------------------------------------------


def text_of(record: Record, sizes: Sizes, width: int = 100) -> Text:
    """Such arrays in the terminal."""
    side = ConversionSide("source", arrays_of(record, sizes), record, sizes, Semantics(record.cell))
    return weights_text(side, width)


def test_numbers_of_small_arrays_and_blocks_of_large_ones():
    torch = records()["torch.gru"]
    small = text_of(torch, Sizes(1, 2)).plain
    assert "weight_ih_l0 [6, 1] float64  W[(g:rzn h) x]\n  r  0.0000\n  r  1.0000\n  z  2.0000\n" in small
    large = text_of(torch, Sizes(30, 20))
    shown = [line.strip() for line in large.plain.splitlines()]
    assert shown[6:9] == ["W_r 20 x 30", "W_z 20 x 30", "W_n 20 x 30"]
    colours = {span.style for span in large.spans if "on #" in str(span.style)}
    assert len(colours) == 3


def test_lines_are_folded():
    keras = records()["keras.lstm"]
    text = text_of(keras, Sizes(8, 8), width=60)
    assert max(len(line.rstrip()) for line in text.plain.splitlines()) <= 60
    assert text.plain.count("g ") >= 8 * 8


def test_wide_tables_go_on_below_with_all_their_rows():
    keras = records()["keras.gru"]
    lines = text_of(keras, Sizes(2, 3), width=80).plain.splitlines()
    begin = lines.index("kernel [2, 9] float64  W[x (g:zrn h)]")
    assert lines[begin + 1 : begin + 7] == [
        "  columns 0 to 5",
        "  z  0.0000  z  1.0000  z  2.0000  r  3.0000  r  4.0000  r  5.0000",
        "  z  9.0000  z      10  z      11  r      12  r      13  r      14",
        "  columns 6 to 8",
        "  n  6.0000  n  7.0000  n  8.0000",
        "  n      15  n      16  n      17",
    ]
    wide = text_of(keras, Sizes(2, 3), width=120).plain
    assert "columns" not in wide
    vector = text_of(records()["cudnn.gru"], Sizes(2, 3), width=80).plain
    assert "columns" not in vector
    assert vector.splitlines()[6].split()[::2] == ["r"] * 6


def test_large_blocks_are_said_once():
    keras = text_of(records()["keras.gru"], Sizes(100, 8), width=80).plain
    assert "  W_z 8 x 100   W_r 8 x 100   W_n 8 x 100 " in keras
    assert keras.count("W_z 8 x 100") == 1
    cudnn = text_of(records()["cudnn.gru"], Sizes(100, 64, layers=2), width=80).plain
    assert cudnn.count("W_z 64 x 100 ") == cudnn.count("W_z of layer 1 64 x 64 ") == 1
    assert max(len(line.rstrip()) for line in cudnn.splitlines()[6:]) <= 80


@pytest.mark.parametrize("value", ["9.9999", "-0.5000", "12.34", "-9876", "-1e+07", "nan", "inf"])
def test_a_number_takes_seven_characters_whatever_it_is(value: str):
    rnn = records()["keras.rnn"]
    arrays = {"kernel": np.full((1, 1), float(value)), "recurrent_kernel": np.ones((1, 1))}
    text = weights_text(ConversionSide("source", arrays, rnn, Sizes(1, 1), Semantics("rnn"))).plain
    assert f"\n  n {value:>7}\n" in text


def test_numbers_that_were_not_moved_have_a_mark():
    lstm = records()["cudnn.lstm"]
    side = ConversionSide("target", arrays_of(lstm, Sizes(1, 1)), lstm, Sizes(1, 1), Semantics("lstm"))
    kinds = dict.fromkeys(side.regions, "moved") | {
        ParameterBlock("b", "i"): "filled",
        ParameterBlock("b", "f"): "summed",
    }
    assert "i∅ 8.0000  fΣ 9.0000  g      10" in weights_text(side, 100, kinds).plain.replace("\n", "")
    sizes = Sizes(100, 64)
    large = ConversionSide("target", arrays_of(lstm, sizes), lstm, sizes, Semantics("lstm"))
    assert " b_i∅ 64   b_fΣ 64   b_g 64 " in weights_text(large, 100, kinds).plain.replace("\n ", "")
    assert signs(side, kinds)["∅"] == "filled: from no number of the source"
    assert set(signs(side, dict.fromkeys(kinds, "moved"))) & {"∅", "Σ", "✗"} == set()


# ---- the notation in words ---------------------------------------------------------------------------------


@pytest.mark.parametrize("record", ALL_RECORDS)
def test_every_sign_of_the_notation_is_explained(record: Record):
    for pattern in record.patterns.values():
        said = explain_notation(pattern)
        assert all(said.values())
        for term in terms(pattern):
            assert any(sign.startswith(term.parameter) for sign in said)
            assert all(axes_text((axis,)) in said for axis in term.axes)
        for sign in ("{L D:", "{L:", "{D:", ";", " / ", " | ", "~"):
            if sign in str(pattern):
                assert any(known.startswith(sign.strip()) for known in said), sign


def test_what_the_notation_says_of_several_buffers():
    assert explain_notation(parse("R[k (g:zr h)]; R_n[k h] : k (3 h)")) == {
        ";": "one buffer behind the other",
        "R": "recurrent weights",
        "k": "outputs of the step before",
        "(g:zr h)": "along one axis: gates z, r, and in each of them hidden units",
        "R_n": "recurrent weights of gate n",
        "h": "hidden units",
        ": k (3 h)": "the shape that the array is declared with",
    }
    assert explain_notation(parse("W[x (g:zrn h) ~ h x]"))["~ h x"] == (
        "in the place of each gate lies the buffer of an array [h x]"
    )
