"""The page in a real browser: pointing, keys, finding, and whether it can be read, in light and dark.

`make pictures` keeps the screenshots in docs/pictures.
"""

import re
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from seeds import SEEDS

import stepnet as sn
from stepnet.layout.registry import record
from stepnet.report.picture import Shown, picture

PICTURES = Path(__file__).parents[2] / "docs" / "pictures"
SCHEMES = ("light", "dark")
SEEN = 1560, 1560
PHONE = 400, 800


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A headless Chromium."""
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is missing: pip install selenium")
    service = pytest.importorskip("selenium.webdriver.chrome.service")
    found = {name: shutil.which(name) for name in ("chromium", "chromedriver")}
    missing = [name for name, path in found.items() if path is None]
    if missing:
        pytest.skip(f"{' and '.join(missing)} missing: apt-get install chromium chromium-driver")
    options = webdriver.ChromeOptions()
    options.binary_location = found["chromium"]
    for flag in (
        "headless=new",
        "no-sandbox",
        "disable-gpu",
        "hide-scrollbars",
        "force-device-scale-factor=1",
    ):
        options.add_argument(f"--{flag}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options, service.Service(found["chromedriver"]))
    driver.set_window_size(*SEEN)
    yield driver
    driver.quit()


def shown(browser: Any, folder: Path, text: str, scheme: str = "light") -> None:
    """Opens a page."""
    path = folder / "page.html"
    path.write_text(text, encoding="utf-8")
    media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
    browser.get(path.as_uri())
    browser.get_log("browser")


def of_conversion(arrays: Any, source: str, target: str, name: str = "the weights") -> Shown:
    """A module to draw, in two layouts."""
    return Shown(name, arrays, record(source), sn.convert(arrays, source, target))


def page(*modules: Shown) -> str:
    """The page of modules."""
    return picture(modules, "model.pt")


def of_seed(cell: str) -> str:
    """The page of a seed's layer, from Keras to cuDNN."""
    arrays = SEEDS[cell]["keras"]
    return page(of_conversion(arrays, f"keras.{cell}", f"cudnn.{cell}"))


def large() -> str:
    """The page of two layers in both directions."""
    torch = pytest.importorskip("torch")
    state = torch.nn.LSTM(100, 256, 2, bidirectional=True).state_dict()
    arrays = {name: value.numpy() for name, value in state.items()}
    return page(of_conversion(arrays, "torch.lstm", "keras.lstm"))


def deep() -> str:
    """The page of two small layers in both directions."""
    torch = pytest.importorskip("torch")
    state = torch.nn.LSTM(2, 3, 2, bidirectional=True).state_dict()
    arrays = {name: value.numpy() for name, value in state.items()}
    return page(of_conversion(arrays, "torch.lstm", "onnx.lstm"))


@contextmanager
def window(browser: Any, size: tuple[int, int]) -> Iterator[None]:
    """A window of another size."""
    metrics = {"width": size[0], "height": size[1], "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    try:
        yield
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def until(happens: Callable[[], bool]) -> None:
    """Waits until something happens in the page."""
    end = time.monotonic() + 10
    while not happens():
        assert time.monotonic() < end
        time.sleep(0.02)


def cues(browser: Any, box: Any) -> list[str]:
    """What stands at the start and at the end of a box that scrolls."""
    return browser.execute_script(
        """const holder = arguments[0].parentElement;
        return ["::before", "::after"].map((end) => getComputedStyle(holder, end).content);""",
        box,
    )


def inside(browser: Any, cell: Any) -> bool:
    """Whether the middle of a cell is seen: in the window, and covered by nothing."""
    return browser.execute_script(
        """const box = arguments[0].getBoundingClientRect();
        const top = document.elementFromPoint(box.left + box.width / 2, box.top + box.height / 2);
        return arguments[0].contains(top);""",
        cell,
    )


def one(browser: Any, selector: str) -> Any:
    """The element of a selector."""
    return browser.find_element("css selector", selector)


def many(browser: Any, selector: str) -> list[Any]:
    """All elements of a selector."""
    return browser.find_elements("css selector", selector)


def told(browser: Any) -> str:
    """What the page tells at the moment."""
    return one(browser, "#tells").text


def press(browser: Any, *keys: str) -> None:
    """Presses keys one after the other, wherever the focus is."""
    from selenium.webdriver.common.action_chains import ActionChains

    for key in keys:
        ActionChains(browser).send_keys(key).perform()


def focused(browser: Any) -> Any:
    """The element that has the focus."""
    return browser.switch_to.active_element


def test_pointing_at_a_number_shows_where_it_goes(browser: Any, tmp_path: Path):
    from selenium.webdriver.common.action_chains import ActionChains

    shown(browser, tmp_path, of_seed("gru"))
    cell = one(browser, "[data-key='source.Wr.0.0.1.0']")
    ActionChains(browser).move_to_element(cell).perform()
    assert told(browser) == "0.278675 at kernel[0, 4] is W_r[1, 0]; it is moved, to weight_space[2]."
    (linked,) = many(browser, "td.linked")
    assert linked.get_attribute("data-key") == "target.Wr.0.0.1.0"
    assert "0.278675" in linked.text
    ActionChains(browser).move_to_element(one(browser, "h1")).perform()
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


@pytest.mark.parametrize("scheme", SCHEMES)
def test_every_text_can_be_read(browser: Any, tmp_path: Path, scheme: str):
    for text in (of_seed("gru"), of_seed("lstm")):
        shown(browser, tmp_path, text, scheme)
        pairs = browser.execute_script(COLOURS, "body *:not(script)")
        assert len(pairs) > 100
        for ink, paper, what in pairs:
            assert contrast(ink, paper) >= 4.5, (what, ink, paper)  # WCAG 2.2, 1.4.3, level AA


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("sight", ["all", "protanopia", "deuteranopia"])
def test_gates_are_told_apart_by_any_eyes(browser: Any, tmp_path: Path, scheme: str, sight: str):
    for cell in ("gru", "lstm"):
        shown(browser, tmp_path, of_seed(cell), scheme)
        for parameter in "WRb":
            pairs = browser.execute_script(COLOURS, f"main td.{parameter}:not(.filled)")
            colours = {tuple(paper) for _, paper, _ in pairs}
            assert len(colours) == (3 if cell == "gru" else 4)
            for a, b in combinations(colours, 2):
                assert difference(seen(a, sight), seen(b, sight)) > 5, (parameter, a, b)


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("sight", ["all", "protanopia", "deuteranopia"])
def test_parameters_are_told_apart_by_their_shades(browser: Any, tmp_path: Path, scheme: str, sight: str):
    shown(browser, tmp_path, of_seed("gru"), scheme)
    assert [item.text.split()[0] for item in many(browser, "[aria-label*='shade'] li")] == list("WRbd")
    for place in (*(f"td.{gate}.%s" for gate in "rzn"), ".legend .%s.shade"):
        pairs = [browser.execute_script(COLOURS, place % parameter)[0] for parameter in "WRbd"]
        colours = [seen(paper, sight) for _, paper, _ in pairs]
        for lighter, darker in pairwise(colours):
            assert difference(lighter, darker) > 5, place
    first = one(browser, "[data-key='target.Rr.0.0.0.0']")
    assert first.value_of_css_property("border-top-width") == "3px", "a thick line where R begins"


# ---- what was done -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", SCHEMES)
def test_filled_zeros_do_not_look_like_moved_numbers(browser: Any, tmp_path: Path, scheme: str):
    arrays = {name: np.zeros_like(array) for name, array in SEEDS["lstm"]["keras"].items()}
    shown(browser, tmp_path, page(of_conversion(arrays, "keras.lstm", "torch.lstm")), scheme)
    moved = one(browser, "[data-key='target.bf.0.0.0']")
    filled = one(browser, "[data-key='target.df.0.0.0']")
    assert moved.value_of_css_property("background-image") == "none"
    hatch = filled.value_of_css_property("background-image")
    assert "repeating-linear-gradient" in hatch
    line = [255 * float(part) for part in re.findall(r"color\(srgb ([\d. ]+)\)", hatch)[0].split()]
    ((ink, paper, _),) = browser.execute_script(COLOURS, "[data-key='target.df.0.0.0']")
    assert contrast(ink[:3], line) >= 4.5
    assert difference(seen(line, "all"), seen(paper[:3], "all")) > 5
    assert ("∅" in filled.text, "∅" in moved.text) == (True, False)
    legend = one(browser, "[aria-label*='mark']").text
    assert legend.replace("\n", " ") == "∅ filled: from no number of the source"


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
    from selenium.webdriver.common.action_chains import ActionChains

    with window(browser, size):
        shown(browser, tmp_path, deep())
        for key in ("Wi.0.0.0.0", "Ro.1.1.2.2", "bg.1.0.1", "do.1.1.2", "Wf.1.1.0.5"):
            for here, there in (("source", "target"), ("target", "source")):
                cell = one(browser, f"[data-key='{here}.{key}']")
                browser.execute_script("frame(arguments[0]); reveal(arguments[0])", cell)
                ActionChains(browser).move_to_element(cell).perform()
                assert [each.get_attribute("data-key") for each in many(browser, "td.linked")] == [
                    f"{there}.{key}"
                ]
                assert inside(browser, one(browser, "td.linked")), (here, key)
                assert inside(browser, cell), (here, key)


def test_pointing_from_the_top_of_the_page_shows_both(browser: Any, tmp_path: Path):
    from selenium.webdriver.common.action_chains import ActionChains

    with window(browser, (1200, 700)):
        shown(browser, tmp_path, deep())
        cell = one(browser, "[data-key='source.Wi.0.0.0.0']")
        assert browser.execute_script("return scrollY") == 0
        assert not inside(browser, one(browser, "[data-key='target.Wi.0.0.0.0']"))
        ActionChains(browser).move_to_element(cell).perform()
        assert browser.execute_script("return scrollY") > 0
        assert inside(browser, one(browser, "td.linked"))
        assert "is W_i[0, 0];" in told(browser), "what came below the pointer by scrolling is not pointed at"
        assert many(browser, "td.shown") == [cell]
        assert many(browser, "td:hover") != [cell]
        solid = [
            each for each in many(browser, "td.cell") if "solid" in each.value_of_css_property("outline")
        ]
        assert solid == [cell]


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
    from selenium.webdriver.common.action_chains import ActionChains

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
    ActionChains(browser).move_to_element(cell).perform()
    (linked,) = many(browser, "td.linked")
    assert linked == one(browser, "#module-3 [data-key='target.Wr.0.0.1.0']")
    assert "new memory" not in one(browser, "header").text
    assert one(browser, "header").text.count("candidate") == 2, "n of the GRU and g of the LSTM"


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("cell", ["gru", "lstm"])
def test_screenshots(browser: Any, tmp_path: Path, cell: str, scheme: str, request: pytest.FixtureRequest):
    from selenium.webdriver.common.action_chains import ActionChains

    shown(browser, tmp_path, of_seed(cell), scheme)
    gate = {"gru": "r", "lstm": "f"}[cell]
    ActionChains(browser).move_to_element(one(browser, f"[data-key='source.W{gate}.0.0.1.0']")).perform()
    folder = PICTURES if request.config.getoption("--save") else tmp_path
    folder.mkdir(exist_ok=True)
    path = folder / f"{cell}_keras_cudnn_{scheme}.png"
    assert browser.save_screenshot(str(path))
    assert len(np.unique(pixels(path).reshape(-1, 3), axis=0)) > 100


# ---- colours -----------------------------------------------------------------------------------------------

COLOURS = """
function rgb(text) {
  rgb.canvas = rgb.canvas || new OffscreenCanvas(1, 1).getContext("2d", {willReadFrequently: true});
  const canvas = rgb.canvas;
  canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = text; canvas.fillRect(0, 0, 1, 1);
  return [...canvas.getImageData(0, 0, 1, 1).data];
}
function over(top, under) {
  return under.map((value, place) => (top[place] * top[3] + value * (255 - top[3])) / 255);
}
function paper(element) {
  if (!element) return [255, 255, 255];
  return over(rgb(getComputedStyle(element).backgroundColor), paper(element.parentElement));
}
return [...document.querySelectorAll(arguments[0])].filter((e) => e.textContent.trim()).map((e) => {
  const back = paper(e);
  return [over(rgb(getComputedStyle(e).color), back), back, e.className || e.tagName];
});
"""
# G. M. Machado, M. M. Oliveira, L. A. F. Fernandes, "A Physiologically-based Model for Simulation of Color
# Vision Deficiency", IEEE TVCG 15 (2009), severity 1.0, for linear RGB.
SIGHTS = {
    "all": np.eye(3),
    "protanopia": [
        [0.152286, 1.052583, -0.204868],
        [0.114503, 0.786281, 0.099216],
        [-0.003882, -0.048116, 1.051998],
    ],
    "deuteranopia": [
        [0.367322, 0.860646, -0.227968],
        [0.280085, 0.672501, 0.047413],
        [-0.011820, 0.042940, 0.968881],
    ],
}
XYZ = [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]  # IEC 61966-2-1


def linear(colour: Any) -> np.ndarray:
    """Linear RGB of sRGB in bytes."""
    unit = np.asarray(colour, float) / 255
    return np.where(unit <= 0.04045, unit / 12.92, ((unit + 0.055) / 1.055) ** 2.4)


def contrast(a: Any, b: Any) -> float:
    """The contrast of WCAG 2.2."""
    low, high = sorted(float(linear(colour) @ [0.2126, 0.7152, 0.0722]) for colour in (a, b))
    return (high + 0.05) / (low + 0.05)


def seen(colour: Any, sight: str) -> np.ndarray:
    """CIE L*a*b* of a colour as it is seen."""
    light = np.clip(np.asarray(SIGHTS[sight]) @ linear(colour), 0, 1)
    x, y, z = np.cbrt(np.asarray(XYZ) @ light / np.asarray(XYZ).sum(1))
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def difference(a: np.ndarray, b: np.ndarray) -> float:
    """The difference of two colours, CIE 1976; 2.3 is just noticed."""
    return float(np.linalg.norm(a - b))


def pixels(path: Path) -> np.ndarray:
    """The pixels of a picture."""
    image = pytest.importorskip("matplotlib.image")
    return image.imread(path)[..., :3]
