"""The records: which there are, what they are called and where they were read, and the names of arrays."""

import re
from collections.abc import Iterator
from pathlib import Path
from string import digits
from typing import Any

import pytest

import stepnet
from stepnet.errors import LayoutError
from stepnet.layout import Record, Semantics, Sizes, record, records
from stepnet.layout.record import Evidence
from stepnet.layout.registry import FILES
from stepnet.layout.semantics import GATES
from stepnet.layout.sizes import LETTERS
from stepnet.layout.solve import OpenSizesError, sizes_of
from tests.layout.layout_cases import fitting

NAMES = list(records())

PROMISED = {  # by framework, the kinds of layer
    "torch": "rnn gru lstm lstm_projection rnn_cell gru_cell lstm_cell",
    "keras": "rnn gru gru_reset_before lstm cudnn_gru cudnn_lstm",
    "keras2": "rnn gru gru_reset_before lstm",
    "keras1": "rnn gru lstm",
    "tf1": "rnn basic_lstm lstm lstm_projection lstm_block gru gru_block gru_block_v2 cudnn_compatible_gru "
    "cudnn_compatible_lstm",
    "cudnn": "rnn gru lstm rnn_no_bias gru_no_bias lstm_no_bias rnn_input_bias gru_input_bias "
    "lstm_input_bias rnn_recurrent_bias gru_recurrent_bias lstm_recurrent_bias lstm_projection",
    "onednn": "rnn gru lbr_gru lstm gru_ldgoi lbr_gru_ldgoi lstm_ldgoi lstm_peephole lstm_projection",
    "onnx": "rnn gru lstm",
    "openvino": "rnn gru gru_reset_before lstm",
    "paddle": "rnn gru lstm lstm_projection fusion_gru dynamic_gru dynamic_lstm dynamic_lstm_no_peepholes",
    "mxnet": "rnn gru lstm lstm_projection rnn_unfused gru_unfused lstm_unfused lstm_projection_unfused "
    "rnn_cell gru_cell lstm_cell lstm_projection_cell rnn_flat gru_flat lstm_flat lstm_projection_flat",
    "flax": "rnn gru lstm mgu",
    "nnx": "rnn gru lstm optimized_lstm",
    "haiku": "rnn gru lstm",
    "equinox": "gru lstm",
    "mlx": "rnn gru lstm",
    "mlx_early": "rnn gru lstm",
    "tflite": "rnn basic_lstm lstm lstm_projection lstm_coupled",
    "coreml": "lstm",
    "ncnn": "rnn gru lstm",
    "chainer": "lstm gru nstep_rnn nstep_birnn nstep_gru nstep_bigru nstep_lstm nstep_bilstm",
    "cntk": "rnn gru lstm lstm_projection",
    "dl4j": "lstm graves_lstm",
    "darknet": "gru lstm",
    "haste": "gru lstm",
    "flashrnn": "rnn gru lstm",
    "candle": "gru lstm",
    "burn": "gru lstm",
    "stepnet": "simple_rnn simple_rnn_relu gru gru_reset_before minimal_gated_unit lstm lstm_peephole "
    "lstm_projection",
}


@pytest.mark.parametrize("framework", PROMISED)
def test_the_layers_of_every_framework_have_records(framework: str):
    found = [name.partition(".")[2] for name in NAMES if name.partition(".")[0] == framework]
    assert sorted(found) == sorted(PROMISED[framework].split())


def test_every_file_of_records_is_read():
    """A file that nobody names in the registry would be there for nothing."""
    files = (Path(stepnet.__file__).parent / "layout" / "records").glob("*.py")
    assert sorted(file.stem for file in files) == sorted(["__init__", *FILES])
    assert {name.partition(".")[0] for name in NAMES} == PROMISED.keys()


@pytest.mark.parametrize("name", NAMES)
def test_a_record_says_what_it_is_and_where_it_was_read(name: str):
    each = record(name)
    assert re.fullmatch(r"[a-z][a-z0-9_]*\.[a-z][a-z0-9_]*", name)
    assert each.name == name
    assert each.cell in GATES
    assert each.evidence.source
    assert each.evidence.versions or name.startswith("stepnet.")
    assert each.lone_bias in "bd"
    assert str(each.evidence).startswith(each.evidence.source)
    run = f"verified: {each.evidence.run}" if each.evidence.run else "not verified by running"
    assert str(each.evidence).endswith(run)


def test_evidence_in_words():
    assert str(Evidence("rnn.py")) == "rnn.py; not verified by running"
    assert str(Evidence("rnn.py", "it ran", "2 on")) == "rnn.py, holds for 2 on; verified: it ran"


def test_records_by_name():
    assert record("torch.gru") is records()["torch.gru"]
    assert record(record("torch.gru")) is record("torch.gru")
    near = "no layout is called 'torch.gruu' (did you mean torch.gru or "
    with pytest.raises(LayoutError, match=re.escape(near)):
        record("torch.gruu")
    every = "no layout is called 'zzz'; `stepnet layouts` lists all"
    with pytest.raises(LayoutError, match=re.escape(every)):
        record("zzz")


# ---- what function it is -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_settings_are_translated_by_the_frameworks_own_words(name: str):
    each = record(name)
    for field, setting in each.settings().items():
        for ours, theirs in (setting.values or {0.5: 0.5}).items():
            found = each.translated({setting.name: theirs})
            assert found[field] == ours
            assert setting.text(ours) == f"{setting.name}={theirs!r}"
            assert setting.allows(ours)
        assert setting.usual is None or setting.allows(setting.usual)
        if setting.values is not None:
            message = f"{setting.name} of {name} is one of "
            with pytest.raises(LayoutError, match=re.escape(message)):
                each.translated({setting.name: "no such"})
    assert each.translated({"no such": 1}) == {}


@pytest.mark.parametrize("name", NAMES)
def test_open_semantics_are_asked_for_one_by_one_and_all_else_is_settled(name: str):
    each = record(name)
    asked = {field: setting for field, setting in each.settings().items() if setting.usual is None}
    given: dict[str, Any] = {}
    for field, setting in asked.items():
        message = f"{name}: the arrays do not determine {field} (its name there: {setting.name}): "
        with pytest.raises(LayoutError, match=re.escape(message)):
            each.settled(given)
        given[field] = 1.0 if setting.values is None else next(iter(setting.values))
    found = each.settled(given)
    assert isinstance(found, Semantics)
    assert all(getattr(found, field) == value for field, value in given.items())
    assert each.settled({field: getattr(found, field) for field in each.settings()}) == found


@pytest.mark.parametrize(
    ("name", "settings", "ours"),
    [
        ("onnx.gru", {"linear_before_reset": 1, "hidden_size": 3}, {"reset": "after"}),
        ("onnx.gru", {"linear_before_reset": 0, "clip": 2.0}, {"reset": "before", "clip": 2.0}),
        ("keras.lstm", {"recurrent_activation": "hard_sigmoid"}, {"gate_activation": "hard_sigmoid"}),
        ("keras2.lstm", {"recurrent_activation": "hard_sigmoid"}, {"gate_activation": "hard_sigmoid_fifth"}),
        (
            "keras.lstm",
            {"activation": "relu"},
            {"candidate_activation": "relu", "output_activation": "relu"},
        ),
        ("paddle.fusion_gru", {"origin_mode": False}, {"update": "write"}),
        ("tf1.basic_lstm", {"forget_bias": 1.0}, {"forget_bias": 1.0}),
        ("cudnn.rnn", {"cellMode": "CUDNN_RNN_RELU"}, {"candidate_activation": "relu"}),
        ("burn.gru", {"reset_after": True}, {"reset": "after"}),
    ],
)
def test_what_some_settings_mean(name: str, settings: dict[str, Any], ours: dict[str, Any]):
    assert record(name).translated(settings) == ours


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("torch.gru", "Semantics(gru: reset='after', update='keep')"),
        ("keras.gru_reset_before", "Semantics(gru: reset='before', update='keep')"),
        ("haiku.gru", "Semantics(gru: reset='before', update='write')"),
        ("chainer.gru", "Semantics(gru: reset='before', update='write')"),
        ("chainer.nstep_gru", "Semantics(gru: reset='after', update='keep')"),
        ("haiku.lstm", "Semantics(lstm: forget_bias=1.0)"),
        ("haiku.rnn", "Semantics(rnn: candidate_activation='relu')"),
        ("cntk.rnn", "Semantics(rnn: candidate_activation='sigmoid')"),
        ("tflite.lstm_coupled", "Semantics(lstm: coupled=True)"),
        ("haste.gru", "Semantics(gru: reset='after', update='keep')"),
        ("onednn.gru", "Semantics(gru: reset='before', update='keep')"),
        ("onednn.lbr_gru", "Semantics(gru: reset='after', update='keep')"),
    ],
)
def test_what_some_records_compute(name: str, said: str):
    assert repr(record(name).settled({})) == said


@pytest.mark.parametrize(
    "name", ["onnx.gru", "burn.gru", "paddle.fusion_gru", "keras2.gru", "tf1.basic_lstm"]
)
def test_what_shapes_cannot_tell_has_no_usual_value(name: str):
    with pytest.raises(LayoutError, match="the arrays do not determine"):
        record(name).settled({})


def test_records_that_say_the_same_are_the_same():
    assert record("candle.lstm").same_as(record("torch.lstm"))
    assert not record("torch.gru").same_as(record("torch.lstm"))
    assert not record("keras.gru").same_as(record("keras2.gru"))


# ---- the names of arrays -----------------------------------------------------------------------------------


def many_sizes(each: Record) -> Iterator[Sizes]:
    """Of one layer, three and eleven, in both directions; square where all layers lie in one array."""
    for layers, directions in ((1, 1), (1, 2), (3, 2), (11, 1)):
        if each.ways not in (None, directions):
            continue
        yield fitting(each, Sizes(2, 3, 2, layers, directions))


@pytest.mark.parametrize("name", NAMES)
def test_names_are_found_again(name: str):
    each = record(name)
    for sizes in many_sizes(each):
        entries = list(each.entries(sizes))
        assert len({entry.name for entry in entries}) == len(entries)
        for entry in entries:
            assert each.parsed_name(entry.name) == (entry.template, entry.layer, entry.direction)
            assert re.fullmatch(each.prefixed_patterns[entry.template], f"model/rnn.{entry.name}")
            assert not any(re.fullmatch(text, f"{entry.name}/m") for text in each.prefixed_patterns.values())
            assert entry.name.rstrip(digits).endswith(each.tails(entry.template))
    strangers = ("", "no such", "weight_ih_l", "kernel ", "weight_ih_l12345", "2//kernel", "up/kernel")
    assert [one for one in strangers if each.parsed_name(one)] == []


@pytest.mark.parametrize("name", NAMES)
def test_shapes_tell_their_sizes_or_leave_them_open(name: str):
    """Never others: either the sizes themselves, or they are asked for, and given they are taken."""
    each = record(name)
    for sizes in many_sizes(each):
        shapes = each.shapes(sizes)
        given = {one: getattr(sizes, one) for one in LETTERS}
        assert sizes_of(each, shapes, given) == sizes
        try:
            found = sizes_of(each, shapes)
        except OpenSizesError:
            assert each.patterns.keys() in ({"weight_space"}, {"parameters"}, {"weights"})
            continue
        assert found == sizes


@pytest.mark.parametrize(
    ("name", "layers", "directions", "names"),
    [
        ("torch.gru", 1, 1, "weight_ih_l0 weight_hh_l0 bias_ih_l0 bias_hh_l0"),
        (
            "torch.lstm_projection",
            1,
            2,
            "weight_ih_l0 weight_hh_l0 bias_ih_l0 bias_hh_l0 weight_hr_l0 weight_ih_l0_reverse "
            "weight_hh_l0_reverse bias_ih_l0_reverse bias_hh_l0_reverse weight_hr_l0_reverse",
        ),
        ("keras.gru", 1, 1, "kernel recurrent_kernel bias"),
        (
            "keras.gru",
            1,
            2,
            "forward/kernel forward/recurrent_kernel forward/bias "
            "backward/kernel backward/recurrent_kernel backward/bias",
        ),
        ("keras.rnn", 2, 1, "0/kernel 0/recurrent_kernel 0/bias 1/kernel 1/recurrent_kernel 1/bias"),
        (
            "cntk.rnn",
            2,
            2,
            "0/forward/W 0/forward/H 0/forward/b 0/backward/W 0/backward/H 0/backward/b "
            "1/forward/W 1/forward/H 1/forward/b 1/backward/W 1/backward/H 1/backward/b",
        ),
        (
            "mxnet.gru",
            2,
            2,
            "l0_i2h_weight l0_h2h_weight l0_i2h_bias l0_h2h_bias "
            "r0_i2h_weight r0_h2h_weight r0_i2h_bias r0_h2h_bias "
            "l1_i2h_weight l1_h2h_weight l1_i2h_bias l1_h2h_bias "
            "r1_i2h_weight r1_h2h_weight r1_i2h_bias r1_h2h_bias",
        ),
        ("onnx.lstm", 1, 2, "W R B P"),
        ("onnx.gru", 2, 2, "0/W 0/R 0/B 1/W 1/R 1/B"),
        (
            "coreml.lstm",
            1,
            2,
            "weight_ih weight_hh bias peephole weight_ih_back weight_hh_back bias_back peephole_back",
        ),
        ("cudnn.gru", 3, 2, "weight_space"),
        ("onednn.gru", 3, 2, "weights_layer weights_iter bias"),
        (
            "tflite.rnn",
            1,
            2,
            "fw_input_weights fw_recurrent_weights fw_bias bw_input_weights bw_recurrent_weights bw_bias",
        ),
    ],
)
def test_how_names_are_spelled(name: str, layers: int, directions: int, names: str):
    each = record(name)
    sizes = Sizes(3, 3, 3 if each.projection else None, layers, directions)
    assert [entry.name for entry in each.entries(sizes)] == names.split()


def test_names_that_may_be_missing():
    assert record("torch.gru").names() == ["weight_ih_l0", "weight_hh_l0", "bias_ih_l0?", "bias_hh_l0?"]
    assert record("onnx.lstm").names() == ["W", "R", "B?", "P?"]
    entries = {entry.name: entry.kinds for entry in record("paddle.dynamic_lstm").entries(Sizes(2, 3))}
    assert entries == {"fc/Weight": {"W"}, "Weight": {"R"}, "Bias": {"bias", "peepholes"}}


@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("weight_hh_l7_reverse", ("weight_hh_l{L}{D}", 7, 1)),
        ("weight_hh_l07", ("weight_hh_l{L}{D}", 7, 0)),
        ("bias_ih_l0", ("bias_ih_l{L}{D}?", 0, 0)),
        ("bias_ih_l0_forward", None),
        ("weight_hr_l0", None),
        ("0/weight_ih_l0", None),
        ("weight_ih_l-1", None),
    ],
)
def test_places_of_names(name: str, place: Any):
    assert record("torch.gru").parsed_name(name) == place
