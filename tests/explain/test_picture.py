"""The page, as text: what it tells, that it is closed to the outside, and that names from files are text."""

import re
from hashlib import sha256
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import command_line
import numpy as np
import pytest

import stepnet as sn
from stepnet.explain.page import PageModule, UndrawnModule, picture, resource
from stepnet.layout import Conversion, Record, registry

RANDOM = np.random.default_rng(5)


class Page(HTMLParser):
    """The cells of a page by their place, and all its attributes and tags."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.cells: dict[str, dict[str, str]] = {}
        self.attributes: list[tuple[str, str]] = []
        self.tags: set[str] = set()
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.tags.add(tag)
        self.attributes += given.items()
        if "data-key" in given:
            self.cells[given["data-key"]] = given

    def handle_data(self, data: str) -> None:
        self.text += data


def gru(inputs: int = 2, hidden: int = 3) -> dict[str, Any]:
    """A GRU of Keras."""
    shapes = {
        "kernel": (inputs, 3 * hidden),
        "recurrent_kernel": (hidden, 3 * hidden),
        "bias": (2, 3 * hidden),
    }
    return {name: RANDOM.normal(size=shape).astype("float32") for name, shape in shapes.items()}


def page(arrays: dict[str, Any], source: str, target: str, **options: Any) -> str:
    """The page of a conversion."""
    return of_conversion(arrays, source, sn.convert(arrays, source, target, **options))


def of_conversion(arrays: dict[str, Any], source: str | Record, conversion: Conversion) -> str:
    """The page of a conversion that was done."""
    return picture([PageModule("the weights", arrays, registry.record(source), conversion)])


def test_every_number_tells_where_it_goes():
    arrays = gru()
    conversion = sn.convert(arrays, "keras.gru", "cudnn.gru")
    found = Page(of_conversion(arrays, "keras.gru", conversion)).cells
    assert len(found) == 2 * 63
    for given in found.values():
        said = re.fullmatch(
            r"(\S+) at (\w+)(\[.*?\]) is (\S+\[.*?\]); it is moved, to (\w+)(\[.*?\])\.", given["data-tells"]
        )
        if said is None:
            assert re.search(r"it comes from \w+\[.*?\], moved\.$", given["data-tells"]), given
            continue
        value = arrays[said[2]][tuple(map(int, said[3][1:-1].split(", ")))]
        assert float(said[1]) == float(f"{value:.6g}")
        assert conversion.arrays[said[5]][int(said[6][1:-1])] == value
        assert found[given["data-to"]]["data-what"] == said[4] == given["data-what"]


def told(text: str, key: str) -> str:
    """The text of the page about one number, after the description of the number."""
    return Page(text).cells[key]["data-tells"].partition("; ")[2]


def test_sums():
    torch_lstm = {
        name: RANDOM.normal(size=(12, *more)).astype("float32")
        for name, more in (
            ("weight_ih_l0", (2,)),
            ("weight_hh_l0", (3,)),
            ("bias_ih_l0", ()),
            ("bias_hh_l0", ()),
        )
    }
    text = page(torch_lstm, "torch.lstm", "keras.lstm")
    assert told(text, "source.bf.0.0.1") == "it is summed with bias_hh_l0[4], to bias[4]."
    assert told(text, "source.df.0.0.1") == "it is summed with bias_ih_l0[4], to bias[4]."
    assert told(text, "target.bf.0.0.1") == "it comes from bias_ih_l0[4] + bias_hh_l0[4], summed."
    assert "rounded once" in Page(text).text


def test_negations():
    haiku = {
        "w_i": RANDOM.normal(size=(2, 9)).astype("float32"),
        "w_h": RANDOM.normal(size=(3, 9)).astype("float32"),
        "b": RANDOM.normal(size=9).astype("float32"),
    }
    assert set(haiku) == set(registry.record("haiku.gru").names())
    text = page(haiku, "haiku.gru", "keras.gru_reset_before")
    negated = [one["data-tells"] for one in Page(text).cells.values() if "negated" in one["data-tells"]]
    moved = [one["data-tells"] for one in Page(text).cells.values() if "moved" in one["data-tells"]]
    assert len(negated) == 2 * (6 + 9 + 3)
    assert len(moved) == 2 * 2 * (6 + 9 + 3)
    assert "1 - s(a) = s(-a) inverts the sense of the update gate" in Page(text).text


def test_what_is_filled_and_what_has_no_place():
    keras = {
        "kernel": RANDOM.normal(size=(2, 12)).astype("float32"),
        "recurrent_kernel": RANDOM.normal(size=(3, 12)).astype("float32"),
        "bias": RANDOM.normal(size=12).astype("float32"),
    }
    assert told(page(keras, "keras.lstm", "torch.lstm"), "target.di.0.0.0") == "it is filled with 0."
    unprojected = {
        "weight_ih_l0": np.ones((12, 2)),
        "weight_hh_l0": np.ones((12, 3)),
        "weight_hr_l0": np.eye(3),
    }
    text = page(unprojected, "torch.lstm_projection", "keras.lstm")
    said = told(text, "source.P.0.0.1.1")
    assert said == "keras.lstm has no place for it, and the function is the same without it."


def test_a_number_summed_with_a_constant():
    block = {"kernel": np.ones((5, 12)), "bias": np.full(12, 0.5)}
    text = page(block, "tf1.basic_lstm", "keras.lstm", semantics={"forget_bias": 1.0})
    assert told(text, "source.bf.0.0.2") == "it is summed with 1, to bias[5]."
    assert told(text, "target.bf.0.0.2") == "it comes from bias[8] + 1, summed."


# ---- one side ----------------------------------------------------------------------------------------------


def test_a_layout_alone_is_one_side():
    text = page(gru(), "keras.gru", "keras.gru")
    found = Page(text)
    assert len(found.cells) == 63
    assert "What was done" not in found.text
    assert all(re.search(r"is \S+\[.*\]\.$", one["data-tells"]) for one in found.cells.values())


# ---- closed to the outside ---------------------------------------------------------------------------------


def test_nothing_is_loaded_and_only_its_own_script_runs():
    text = page(gru(), "keras.gru", "cudnn.gru")
    found = Page(text)
    assert not found.tags & {"link", "img", "iframe", "object", "embed", "base", "form"}
    assert not {name for name, _ in found.attributes} & {"src", "href", "style", "srcset"}
    assert not [name for name, _ in found.attributes if name.startswith("on")]
    assert "://" not in text
    (policy,) = [value for name, value in found.attributes if name == "content" and "default-src" in value]
    assert policy.startswith("default-src 'none'; ")
    for name, file in (("style", "picture.css"), ("script", "picture.js")):
        import base64

        code = base64.b64encode(sha256(resource(file).encode()).digest()).decode()
        assert f"{name}-src 'sha256-{code}'" in policy
        assert f"<{name}>{resource(file)}</{name}>" in text


def test_names_out_of_files_are_text():
    name = '</td><script>alert(1)</script>" onload="x'
    hostile = Record("mine.rnn", "rnn", {name: "W[h x]", "u": "R[h k]"})
    arrays = {name: np.ones((3, 2)), "u": np.ones((3, 3))}
    text = of_conversion(arrays, hostile, sn.convert(arrays, hostile, "keras.rnn"))
    assert "alert(1)" in text
    found = Page(text)
    assert "<script>alert" not in text
    assert "onload" not in {key for key, _ in found.attributes}
    assert found.cells["source.Wn.0.0.0.0"]["data-tells"].startswith(f"1 at {name}[0, 0] is W_n[0, 0]")


# ---- size --------------------------------------------------------------------------------------------------


def test_the_page_stays_small_whatever_the_arrays_are():
    sizes = [len(page(gru(hidden, hidden), "keras.gru", "onnx.gru")) for hidden in (16, 700)]
    assert sizes[1] < 1.1 * sizes[0] < 300_000


@pytest.mark.parametrize("value", [np.nan, np.inf, -0.0, 1e30, 1e-30])
def test_numbers_of_any_kind_are_written(value: float):
    arrays = {name: np.full_like(array, value) for name, array in gru().items()}
    said = told(page(arrays, "keras.gru", "torch.gru"), "source.Wr.0.0.0.0")
    assert said == "it is moved, to weight_ih_l0[0, 0]."
    first = Page(page(arrays, "keras.gru", "torch.gru")).cells["source.Wr.0.0.0.0"]["data-tells"]
    assert first.startswith(f"{value:.6g} at kernel[0, 3] is ")


# ---- the command -------------------------------------------------------------------------------------------


def stepnet(*arguments: Any) -> tuple[int, str]:
    """Exit code and output of a command."""
    code, stdout, stderr = command_line.stepnet(*arguments)
    return code, stdout + stderr


def test_show_writes_a_page_of_a_file(tmp_path: Path):
    arrays = gru()
    np.savez(tmp_path / "gru.npz", **arrays)
    path = tmp_path / "gru.html"
    command = ["show", tmp_path / "gru.npz", "--from", "keras.gru", "--to", "cudnn.gru", "--html", path]
    assert stepnet(*command)[0] == 0
    expected = page(arrays, "keras.gru", "cudnn.gru")
    assert path.read_text(encoding="utf-8") == expected
    code, said = stepnet(*command)
    assert (code, "the file is there already; --force (Python: force=True) replaces it" in said) == (1, True)
    assert stepnet(*command, "--force")[0] == 0
    alone = tmp_path / "alone.html"
    assert stepnet("show", tmp_path / "gru.npz", "--from", "keras.gru", "--html", alone)[0] == 0
    assert len(Page(alone.read_text(encoding="utf-8")).cells) == 63


def test_a_page_is_of_all_modules(tmp_path: Path):
    both = {f"{layer}/{name}": array for layer in ("first", "second") for name, array in gru().items()}
    np.savez(tmp_path / "two.npz", **both)
    command = ["show", tmp_path / "two.npz", "--from", "keras.gru", "--html", tmp_path / "two.html"]
    assert stepnet(*command)[0] == 0
    found = Page((tmp_path / "two.html").read_text(encoding="utf-8"))
    value = both["second/kernel"][0, 3]
    assert found.cells["source.Wr.0.0.0.0"]["data-tells"].startswith(f"{value:.6g} at ")
    assert [value for name, value in found.attributes if name == "href"] == ["#module-1", "#module-2"]
    assert "two.npz" in found.text
    assert stepnet(*command, "--module", "first", "--force")[0] == 0
    alone = Page((tmp_path / "two.html").read_text(encoding="utf-8"))
    assert not [value for name, value in alone.attributes if name == "href"]


def test_a_module_of_which_something_is_open_is_named_on_the_page(tmp_path: Path):
    arrays = gru()
    drawn = PageModule(
        "a", arrays, registry.record("keras.gru"), sn.convert(arrays, "keras.gru", "keras.gru")
    )
    found = Page(picture([drawn, UndrawnModule("b", "63 numbers fit <several> sizes")], "two.pt"))
    assert "b is not drawn: 63 numbers fit <several> sizes" in found.text
    np.savez(tmp_path / "open.npz", weight_space=np.ones(63))
    code, said = stepnet("show", tmp_path / "open.npz", "--html", tmp_path / "open.html")
    assert (code, "there is nothing to draw: weight_space fits cudnn.rnn and" in said) == (1, True), said
    assert not (tmp_path / "open.html").exists()


def test_the_terminal_draws_both_sides(tmp_path: Path):
    lstm: dict[str, Any] = {
        name: np.full(shape, 2.5)
        for name, shape in {"kernel": (2, 12), "recurrent_kernel": (3, 12), "bias": (12,)}.items()
    }
    np.savez(tmp_path / "lstm.npz", **lstm)
    code, said = stepnet("show", tmp_path / "lstm.npz", "--from", "keras.lstm", "--to", "cudnn.lstm")
    assert code == 0
    source, target = said.split("cudnn.lstm: 2 inputs, 3 hidden\n")[-2:]
    assert "kernel [2, 12] float64" in source
    assert "weight_space [84] float64" in target
    assert target.count("∅ 0.0000") == 12
    assert target.count("  2.5000") == 72
    assert re.search(r"∅ +filled: from no number of the source", target)
    assert re.search(r"\{L D: \.\.\.\} +for every layer, and in it for every direction", target)
