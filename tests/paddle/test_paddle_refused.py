"""Paddle's programs that are refused, with the operation and its place; and damaged files."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tolerance import assert_close

import stepnet as sn
import stepnet.paddle
from stepnet.compiler.values import leaves
from stepnet.errors import FileError, InputError, ModelError, NetError, StepnetError
from stepnet.paddle import loading
from tests.paddle.test_paddle_programs import SAVED, called, inputs_of, written

Operations = list[Any]


def changed(case: str, folder: Path, change: Callable[[Operations], None]) -> Path:
    """The program of a .json whose operations are changed."""
    path = written(case, folder)
    value = json.loads(path.read_text())
    change(value["program"]["regions"][0]["blocks"][0]["ops"])
    path.write_text(json.dumps(value))
    return path


def first(operations: Operations, kind: str) -> Any:
    return next(each for each in operations if each["#"] == f"1.{kind}")


def attribute(operation: Any, name: str) -> Any:
    return next(pair["AT"] for pair in operation["A"] if pair["N"] == name)


def without_a_rule(operations: Operations) -> None:
    for each in operations:
        if each["#"] in ("1.tanh", "1.exp"):
            each["#"] = "1.cumsum"


def over_sequences(operations: Operations) -> None:
    axes = first(operations, "mean")["I"][1]["%"]
    maker = next(each for each in operations if each["O"] and each["O"][0]["%"] == axes) if axes else None
    attribute(maker, "value")["D"][0]["D"] = 0


def unknown_mode(operations: Operations) -> None:
    attribute(first(operations, "rnn"), "mode")["D"] = "MGU"


def dropout(operations: Operations) -> None:
    attribute(first(operations, "rnn"), "dropout_prob")["D"] = 0.5
    attribute(first(operations, "rnn"), "is_test")["D"] = False


def no_number(operations: Operations) -> None:
    attribute(first(operations, "rnn"), "num_layers")["D"] = "two"


def projected(operations: Operations) -> None:
    attribute(first(operations, "rnn"), "num_layers")["D"] = 2


def product_over_steps(operations: Operations, other: int | None = None) -> None:
    """Puts a product over the steps in the place of the first output: of the input x with the value that has
    the number `other`, by default with the layer's output.
    """
    place = next(at for at, each in enumerate(operations) if each["#"] == "1.fetch")
    fetch, x = operations[place], first(operations, "data")["O"][0]["%"]
    operands = [x, fetch["I"][0]["%"] if other is None else other]
    flags = {"transpose_x": True, "transpose_y": False}
    made = {
        "#": "1.matmul",
        "A": [{"N": name, "AT": {"#": "0.a_bool", "D": flag}} for name, flag in flags.items()],
        "I": [{"%": number} for number in operands],
        "O": [{**fetch["O"][0], "%": 1000}],
        "OA": [],
    }
    fetch["I"] = [{"%": 1000}]
    operations.insert(place, made)


def squared(operations: Operations) -> None:
    product_over_steps(operations, first(operations, "data")["O"][0]["%"])


def listed(operations: Operations) -> Operations:
    """The operations that are no list of parameters."""
    return [each for each in operations if isinstance(each["O"], list)]


REFUSED: dict[str, tuple[str, Callable[[Operations], None], str]] = {
    "no rule": ("json attention", without_a_rule, r"cumsum not supported: operation \d+ \(cumsum\)"),
    "over sequences": (
        "json begun",
        lambda operations: over_sequences(listed(operations)),
        r"it goes over the sequences of .*, which mixes them.*\n  at operation \d+ \(mean\) of .*m\.json",
    ),
    "mode": ("json begun", unknown_mode, r"its mode 'MGU' is none of GRU, .*\n  at operation \d+ \(rnn\)"),
    "dropout": ("json tagger", dropout, r"its dropout is on.*\n  at operation \d+ \(rnn\)"),
    "kind": ("json tagger", no_number, "its attribute num_layers is 'two', and should be a whole number"),
    "padding": (
        "json pooled",
        squared,
        r"where it is not known to have 0.*\n  at operation \d+ \(matmul\) of .*m\.json",
    ),
    "weights": ("json begun", projected, "it has 4 weights, and 2 layers and directions have 8"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_is_named_with_its_place(name: str, tmp_path: Path) -> None:
    case, change, message = REFUSED[name]
    with pytest.raises(ModelError, match=message):
        stepnet.paddle.load(changed(case, tmp_path, change))


@pytest.mark.parametrize("dtype", ["int8", "int32"])
@pytest.mark.parametrize("slot", ["WeightX", "WeightH", "Bias"])
@pytest.mark.parametrize("place", range(4))
def test_quantised_weights_of_any_direction_of_any_layer_are_refused(
    place: int, slot: str, dtype: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written("pdmodel multi_gru", tmp_path)
    program, arrays = loading.read(path)
    (name,) = (each.inputs[slot][place] for each in program.operations if each.type == "multi_gru")
    arrays[name] = (100 * arrays[name]).astype(dtype)
    monkeypatch.setattr(loading, "read", lambda _: (program, arrays))
    with pytest.raises(ModelError, match=rf"its {slot} is of {dtype}: quantised weights are not supported"):
        stepnet.paddle.load(path)


def test_the_layer_of_the_user_is_named(tmp_path: Path) -> None:
    """Where the file says to which layer an operation belongs."""

    def renamed(operations: Operations) -> None:
        each = first(operations, "rnn")
        each["A"].append({"N": "struct_name", "AT": {"#": "0.a_str", "D": "/Tagger/GRU/"}})
        each["#"] = "1.unknown"

    with pytest.raises(ModelError, match=r"operation \d+ \(unknown\) of Tagger/GRU"):
        stepnet.paddle.load(changed("json begun", tmp_path, renamed))


def test_zeros_behind_the_ends_add_nothing_to_a_product_over_the_steps(tmp_path: Path) -> None:
    """A layer that reads the lengths has zeros in the padding, whatever the input has there."""
    graph = stepnet.paddle.load(changed("json pooled", tmp_path, product_over_steps))
    made = called("json pooled", graph, "interpret")["fetch_name_0"]
    x, outputs = inputs_of("json pooled")["x"], SAVED["json pooled/outputs/0"]
    assert_close(made, x.astype("float64").swapaxes(1, 2) @ outputs.astype("float64"), 12, 8)


def test_axes_that_do_not_fit(tmp_path: Path) -> None:
    path = written("json begun", tmp_path)
    with pytest.raises(InputError, match="axes= names 'nope', and the inputs are x, h0"):
        stepnet.paddle.load(path, axes={"nope": "NT"})
    wrong: Any = {"x": 1}
    with pytest.raises(InputError, match=r"axes= is a text for each input by name, .* not \{'x': 1\}"):
        stepnet.paddle.load(path, axes=wrong)
    with pytest.raises(ModelError, match=r"its input is \[sequences, steps, features\]"):
        stepnet.paddle.load(path, axes={"x": "TN"})


def test_the_path_that_paddle_was_given(tmp_path: Path) -> None:
    written("pdmodel gru", tmp_path)
    assert "m.pdmodel" in repr(stepnet.paddle.load(tmp_path / "m"))
    with pytest.raises(FileError, match=r"other.json: there is no such file"):
        stepnet.paddle.load(tmp_path / "other")


def test_sequences_of_any_lengths_and_none(tmp_path: Path, engine: str) -> None:
    """Of other lengths than Paddle was given: each sequence gives what it gives alone."""
    graph = stepnet.paddle.load(written("pdmodel gru reverse", tmp_path))
    random = np.random.default_rng(0)
    rows = [random.normal(size=(length, 3)).astype("float32") for length in (5, 0, 1, 2)]
    begin = random.normal(size=(4, 2)).astype("float32")
    made = graph(sn.Ragged.from_list(rows), statics={"h0": begin}, engine=engine).to_list()
    for place, row in enumerate(rows):
        alone = graph(sn.Ragged.from_list([row]), statics={"h0": begin[place : place + 1]}, engine=engine)
        assert_close(made[place], alone.values, 5, 5)


# ---- damaged files -----------------------------------------------------------------------------------------


def test_parameters_of_another_program(tmp_path: Path) -> None:
    path = written("pdmodel gru", tmp_path)
    beside = path.with_suffix(".pdiparams")
    data = beside.read_bytes()
    others = {
        data[:-1]: r"m\.pdiparams: 'w2' of shape \[1, 6\] is cut off",
        data[:5]: r"m\.pdiparams: it is cut off",
        data + b"more": "it has more than the 3 parameters of the program",
        SAVED["pdmodel lstm/parameters"].tobytes(): r"its parameter 0 is float32 \[3, 8\], and the program's "
        r"'w0' is float32 \[3, 6\]",
    }
    for content, message in others.items():
        beside.write_bytes(content)
        with pytest.raises(FileError, match=message):
            stepnet.paddle.load(path)
    beside.unlink()
    with pytest.raises(FileError, match=r"m\.pdiparams: there is no such file"):
        stepnet.paddle.load(path)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("m.json", b"{}", "this is not a complete program of Paddle"),
        ("m.json", b"[", "its program is no JSON"),
        ("m.json", b'{"base_code": {"magic": "other"}}', "its magic is not pir"),
        ("m.pdmodel", b"", "it has no block"),
        ("m.pdmodel", b"\x0a\xff", "m.pdmodel: "),
        ("m.pdmodel", b"\x0a\x00\x0a\x00", "its program has 2 blocks"),
    ],
)
def test_no_programs(name: str, content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(FileError, match=message):
        stepnet.paddle.load(tmp_path / name)


DAMAGED = {"pdmodel text": 3, "pdmodel multi_gru": 3, "json begun": 2}
"""The number of sequences of each case."""


@pytest.mark.long(examples=50)
@settings(max_examples=150)
@given(
    case=st.sampled_from(list(DAMAGED)),
    at=st.floats(0, 1, exclude_max=True),
    value=st.binary(max_size=3),
    dropped=st.integers(0, 9),
)
def test_damaged_programs_raise_errors_of_stepnet(
    case: str, at: float, value: bytes, dropped: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = written(case, tmp_path_factory.mktemp("damaged"))
    data = path.read_bytes()
    place = int(at * len(data))
    path.write_bytes(data[:place] + value + data[place + dropped :])
    made = loaded(path)
    if isinstance(made, str):
        assert path.name in made
        return
    outputs = computed(case, made)  # names or numbers were spoilt: it computes something, or says why not
    if isinstance(outputs, StepnetError):
        assert str(outputs)
        assert not isinstance(outputs, NetError)
    else:
        assert {len(output) for output in outputs} == {DAMAGED[case]}


def computed(case: str, graph: sn.Graph) -> list[Any] | StepnetError:
    """The outputs of a program, or the error of its call."""
    try:
        return leaves(called(case, graph, "interpret"))
    except StepnetError as error:
        return error


def loaded(path: Path) -> sn.Graph | str:
    """A program, or why it is none."""
    try:
        return stepnet.paddle.load(path)
    except StepnetError as error:
        return str(error)


@pytest.mark.parametrize("case", DAMAGED)
def test_programs_that_are_cut_off(case: str, tmp_path: Path) -> None:
    path = written(case, tmp_path)
    data = path.read_bytes()
    for end in [*range(1, len(data), 37), len(data) - 1]:
        path.write_bytes(data[:end])
        with pytest.raises(
            FileError,
            match=r"m\.\w+: (a message in it is cut off|a number in it does not end|its program is no JSON)",
        ):
            stepnet.paddle.load(path)


def test_an_unknown_operation_is_named_where_its_second_result_is_read(tmp_path: Path) -> None:
    kind = {"TT": {"#": "0.t_dtensor", "D": [{"#": "0.t_f32"}, [-1, 13, 4], "NCHW", [], 0]}}
    attributes = {"name": {"#": "0.a_str", "D": "x"}, "shape": {"#": "1.a_intarray", "D": [-1, 13, 4]},
                  "dtype": {"#": "1.a_dtype", "D": "float32"}}  # fmt: skip
    given = [{"AT": value, "N": name} for name, value in attributes.items()]
    operations = [
        {"#": "1.data", "A": given, "I": [], "O": [{"%": 1, **kind}], "OA": []},
        {"#": "1.while", "A": [], "I": [{"%": 1}], "O": [{"%": 2, **kind}, {"%": 3, **kind}], "OA": []},
        {"#": "1.fetch", "A": given[:1], "I": [{"%": 3}], "O": [{"%": 4, **kind}], "OA": []},
    ]
    program = {"regions": [{"blocks": [{"ops": operations}]}]}
    path = tmp_path / "m.json"
    path.write_text(json.dumps({"base_code": {"magic": "pir"}, "program": program}))
    with pytest.raises(ModelError, match=r"m\.json: while not supported: operation 1 \(while\)"):
        sn.load(path)
