"""The page in a real browser: pointing, keys, finding, room, and several modules.

`make pictures` keeps the screenshots in docs/pictures.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from colours import pixels
from pages import (
    PHONE,
    SCHEMES,
    SEEN,
    cues,
    deep,
    focused,
    inside,
    large,
    many,
    of_conversion,
    of_seed,
    one,
    outlined,
    page,
    point_at,
    press,
    shown,
    told,
    until,
    window,
)
from seeds import SEEDS

PICTURES = Path(__file__).parents[2] / "docs" / "pictures"


def test_pointing_at_a_number_shows_where_it_goes(browser: Any, tmp_path: Path):
    shown(browser, tmp_path, of_seed("gru"))
    cell = one(browser, "[data-key='source.Wr.0.0.1.0']")
    point_at(browser, cell)
    assert told(browser) == "0.278675 at kernel[0, 4] is W_r[1, 0]; it is moved, to weight_space[2]."
    (linked,) = many(browser, "td.linked")
    assert linked.get_attribute("data-key") == "target.Wr.0.0.1.0"
    assert "0.278675" in linked.text
    point_at(browser, one(browser, "h1"))
    assert not many(browser, "td.linked")
    assert "finds" in told(browser)
    assert browser.get_log("browser") == []


def test_the_tables_are_walked_by_keys(browser: Any, tmp_path: Path):
    from selenium.webdriver.common.keys import Keys

    shown(browser, tmp_path, of_seed("gru"))
    press(browser, Keys.TAB, Keys.TAB, Keys.TAB)  # the search, what the notation says, the first number
    walked = [focused(browser).get_attribute("data-what")]
    for key in (Keys.ARROW_RIGHT, Keys.ARROW_DOWN, Keys.ARROW_LEFT, Keys.ARROW_LEFT, Keys.ARROW_DOWN):
        press(browser, key)
        walked.append(focused(browser).get_attribute("data-what"))
    assert walked == ["W_z[0, 0]", "W_z[1, 0]", "W_z[1, 1]", "W_z[0, 1]", "W_z[0, 1]", "R_z[0, 0]"]
    assert told(browser).endswith("is R_z[0, 0]; it is moved, to weight_space[27].")
    press(browser, Keys.ENTER, Keys.ARROW_RIGHT)
    assert "is R_z[0, 0];" in told(browser), "held"
    assert len(many(browser, "td.held")) == len(many(browser, "td.linked")) == 1
    press(browser, Keys.ESCAPE)
    assert not many(browser, "td.held")
    press(browser, Keys.ARROW_RIGHT)
    assert "is R_z[2, 0];" in told(browser)


def test_finding_a_parameter(browser: Any, tmp_path: Path):
    from selenium.webdriver.common.keys import Keys

    def clear(kind: str) -> list[str]:
        return [each.get_attribute(kind) for each in many(browser, f"[{kind}]:not(.away)")]

    shown(browser, tmp_path, of_seed("lstm"))
    press(browser, "/")
    assert focused(browser).get_attribute("id") == "search"
    press(browser, "recurrent")
    assert one(browser, "#matches").text == "in 1 array"
    assert clear("data-search") == ["recurrent_kernel"]
    press(browser, Keys.ESCAPE, "W_f")
    assert one(browser, "#matches").text == "in 2 arrays"
    assert {what[:3] for what in clear("data-what")} == {"W_f"}
    assert len(clear("data-what")) == 2 * 6
    press(browser, Keys.ESCAPE)
    assert one(browser, "#matches").text == ""
    assert len(clear("data-what")) == 2 * 84 - 12, "the biases that are filled are on one side"


def test_what_was_done_is_above_the_numbers(browser: Any, tmp_path: Path):
    shown(browser, tmp_path, of_seed("lstm"))
    report = one(browser, ".report")
    assert "b_ifgo: filled with 0" in report.text
    assert report.rect["y"] + report.rect["height"] <= one(browser, ".sides").rect["y"]


def test_the_notation_is_explained_where_it_stands(browser: Any, tmp_path: Path):
    from selenium.webdriver.common.keys import Keys

    shown(browser, tmp_path, of_seed("gru"))
    (summary,) = many(browser, "[data-search='weight_space'] summary")
    says = one(browser, "[data-search='weight_space'] dl")
    assert not says.is_displayed()
    summary.send_keys(Keys.ENTER)
    assert says.is_displayed()
    assert "{L D: ...}\nfor every layer, and in it for every direction" in says.text


# ---- room --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [(1200, 900), PHONE])
def test_a_wide_array_says_that_it_goes_on(browser: Any, tmp_path: Path, size: tuple[int, int]):
    state = {"kernel": (8, 32), "recurrent_kernel": (8, 32), "bias": (32,)}
    arrays = {name: np.ones(shape, np.float32) for name, shape in state.items()}
    with window(browser, size):
        shown(browser, tmp_path, page(of_conversion(arrays, "keras.lstm", "cudnn.lstm")))
        kernel = one(browser, "[data-search='kernel'] .scroll")
        last = one(browser, "[data-key='source.Wo.0.0.7.0']")
        assert cues(browser, kernel) == ["none", '"→"']
        assert not inside(browser, last)
        browser.execute_script("arguments[0].scrollLeft = 1e6", kernel)
        until(lambda: cues(browser, kernel) == ['"←"', "none"])
        assert last.rect["x"] + last.rect["width"] <= size[0]
        browser.execute_script("arguments[0].scrollLeft = 100", kernel)
        until(lambda: cues(browser, kernel) == ['"←"', '"→"'])


@pytest.mark.parametrize("width", [1200, 1560])
def test_the_output_gate_of_a_small_lstm_is_seen_at_once(browser: Any, tmp_path: Path, width: int):
    with window(browser, (width, 900)):
        shown(browser, tmp_path, of_seed("lstm"))
        last = one(browser, "[data-key='source.Wo.0.0.2.1']")
        assert last.rect["x"] + last.rect["width"] < width
        for box in many(browser, ".scroll"):
            assert cues(browser, box) == ["none", "none"]


@pytest.mark.parametrize("size", [(1560, 900), (1200, 800), PHONE])
def test_the_pair_of_what_is_pointed_at_comes_into_view(browser: Any, tmp_path: Path, size: tuple[int, int]):
    with window(browser, size):
        shown(browser, tmp_path, deep())
        for key in ("Wi.0.0.0.0", "Ro.1.1.2.2", "bg.1.0.1", "do.1.1.2", "Wf.1.1.0.5"):
            for here, there in (("source", "target"), ("target", "source")):
                cell = one(browser, f"[data-key='{here}.{key}']")
                browser.execute_script("frame(arguments[0]); reveal(arguments[0])", cell)
                point_at(browser, cell)
                assert [each.get_attribute("data-key") for each in many(browser, "td.linked")] == [
                    f"{there}.{key}"
                ]
                assert inside(browser, one(browser, "td.linked")), (here, key)
                assert inside(browser, cell), (here, key)


def test_pointing_from_the_top_of_the_page_shows_both(browser: Any, tmp_path: Path):
    with window(browser, (1200, 700)):
        shown(browser, tmp_path, deep())
        cell = one(browser, "[data-key='source.Wi.0.0.0.0']")
        assert browser.execute_script("return scrollY") == 0
        assert not inside(browser, one(browser, "[data-key='target.Wi.0.0.0.0']"))
        point_at(browser, cell)
        assert browser.execute_script("return scrollY") > 0
        assert inside(browser, one(browser, "td.linked"))
        assert "is W_i[0, 0];" in told(browser), "what came below the pointer by scrolling is not pointed at"
        assert many(browser, "td.shown") == [cell]
        assert many(browser, "td:hover") != [cell]
        assert outlined(browser, "td.cell") == [cell]


def test_the_pair_of_what_keys_reach_comes_into_view(browser: Any, tmp_path: Path):
    from selenium.webdriver.common.keys import Keys

    with window(browser, (1200, 700)):
        shown(browser, tmp_path, deep())
        press(browser, Keys.TAB, Keys.TAB, Keys.TAB, *[Keys.ARROW_DOWN] * (12 + 12 + 2 + 12))
        assert focused(browser).get_attribute("data-what") == "R_i[0, 0], backward"
        assert inside(browser, focused(browser))
        assert inside(browser, one(browser, "td.linked"))


@pytest.mark.parametrize("size", [SEEN, PHONE])
def test_no_page_is_wider_than_the_window(browser: Any, tmp_path: Path, size: tuple[int, int]):
    with window(browser, size):
        shown(browser, tmp_path, large())
        wide, inner = browser.execute_script(
            "return [document.documentElement.scrollWidth, document.documentElement.clientWidth]"
        )
        assert wide <= inner == size[0]


# ---- several modules ---------------------------------------------------------------------------------------


def test_modules_are_tied_each_to_its_own(browser: Any, tmp_path: Path):
    gru, lstm = (
        of_conversion(SEEDS[cell]["keras"], f"keras.{cell}", f"cudnn.{cell}", f"{cell}_1")
        for cell in ("gru", "lstm")
    )
    shown(browser, tmp_path, page(gru, lstm, gru))
    assert one(browser, "h1").text == "model.pt"
    assert [link.text for link in many(browser, "nav a")] == ["gru_1", "lstm_1", "gru_1"]
    many(browser, "nav a")[2].click()
    cell = one(browser, "#module-3 [data-key='source.Wr.0.0.1.0']")
    assert inside(browser, cell)
    point_at(browser, cell)
    (linked,) = many(browser, "td.linked")
    assert linked == one(browser, "#module-3 [data-key='target.Wr.0.0.1.0']")
    assert "new memory" not in one(browser, "header").text
    assert one(browser, "header").text.count("candidate") == 2, "n of the GRU and g of the LSTM"


@pytest.mark.long(every=3)
@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("cell", ["gru", "lstm"])
def test_screenshots(browser: Any, tmp_path: Path, cell: str, scheme: str, request: pytest.FixtureRequest):
    shown(browser, tmp_path, of_seed(cell), scheme)
    gate = {"gru": "r", "lstm": "f"}[cell]
    point_at(browser, one(browser, f"[data-key='source.W{gate}.0.0.1.0']"))
    folder = PICTURES if request.config.getoption("--save") else tmp_path
    folder.mkdir(exist_ok=True)
    path = folder / f"{cell}_keras_cudnn_{scheme}.png"
    assert browser.save_screenshot(str(path))
    assert len(np.unique(pixels(path) @ [1, 256, 256**2])) > 100
