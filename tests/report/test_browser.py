"""The page in a real browser: pointing, keys, finding, and whether it can be read, in light and dark.

`make pictures` keeps the screenshots in docs/pictures.
"""

import shutil
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from seeds import SEEDS

import stepnet as sn
from stepnet.layout.registry import record
from stepnet.report.picture import picture

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


def of_seed(cell: str) -> str:
    """The page of a seed's layer, from Keras to cuDNN."""
    arrays = SEEDS[cell]["keras"]
    return picture(arrays, record(f"keras.{cell}"), sn.convert(arrays, f"keras.{cell}", f"cudnn.{cell}"))


def large() -> str:
    """The page of two layers in both directions."""
    torch = pytest.importorskip("torch")
    state = torch.nn.LSTM(100, 256, 2, bidirectional=True).state_dict()
    arrays = {name: value.numpy() for name, value in state.items()}
    return picture(arrays, record("torch.lstm"), sn.convert(arrays, "torch.lstm", "keras.lstm"))


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
    press(browser, Keys.TAB, Keys.TAB)  # the search, then the first number
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
        pairs = browser.execute_script(
            COLOURS, "td, th, h1, h2, h3, small, p, code, li, label, .badge, .term, i, b"
        )
        assert len(pairs) > 100
        for ink, paper, what in pairs:
            assert contrast(ink, paper) >= 4.5, (what, ink, paper)  # WCAG 2.2, 1.4.3, level AA


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("sight", ["all", "protanopia", "deuteranopia"])
def test_gates_are_told_apart_by_any_eyes(browser: Any, tmp_path: Path, scheme: str, sight: str):
    for cell in ("gru", "lstm"):
        shown(browser, tmp_path, of_seed(cell), scheme)
        for parameter in "WRb":
            pairs = browser.execute_script(COLOURS, f"main td.{parameter}")
            colours = {tuple(paper) for _, paper, _ in pairs}
            assert len(colours) == (3 if cell == "gru" else 4)
            for a, b in combinations(colours, 2):
                assert difference(seen(a, sight), seen(b, sight)) > 5, (parameter, a, b)


@pytest.mark.parametrize("size", [SEEN, PHONE])
def test_no_page_is_wider_than_the_window(browser: Any, tmp_path: Path, size: tuple[int, int]):
    shown(browser, tmp_path, large())
    browser.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": size[0], "height": size[1], "deviceScaleFactor": 1, "mobile": False},
    )
    try:
        wide, window = browser.execute_script(
            "return [document.documentElement.scrollWidth, document.documentElement.clientWidth]"
        )
        assert wide <= window == size[0]
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


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
