"""Pages, opened in a browser, and what is seen of them."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from seeds import SEEDS

import stepnet as sn
from stepnet.explain.page import PageModule, picture
from stepnet.layout import record

SCHEMES = ("light", "dark")
SEEN = 1560, 1560
PHONE = 400, 800


def shown(browser: Any, folder: Path, text: str, scheme: str = "light") -> None:
    """Opens a page."""
    path = folder / "page.html"
    path.write_text(text, encoding="utf-8")
    media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
    browser.get(path.as_uri())
    browser.get_log("browser")


def of_conversion(arrays: Any, source: str, target: str, name: str = "the weights") -> PageModule:
    """A module to draw, in two layouts."""
    return PageModule(name, arrays, record(source), sn.convert(arrays, source, target))


def page(*modules: PageModule) -> str:
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
    """The cues at the start and at the end of a box that scrolls."""
    return browser.execute_script(
        """const holder = arguments[0].parentElement;
        return ["::before", "::after"].map((end) => getComputedStyle(holder, end).content);""",
        box,
    )


def inside(browser: Any, cell: Any) -> bool:
    """True if the middle of a cell is seen: in the window, and covered by nothing."""
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
    """The text of the page at the moment."""
    return one(browser, "#tells").text


def point_at(browser: Any, element: Any) -> None:
    """Moves the pointer to an element, at once."""
    from selenium.webdriver.common.action_chains import ActionChains

    ActionChains(browser, duration=0).move_to_element(element).perform()


def outlined(browser: Any, selector: str) -> list[Any]:
    """The elements of a selector with a solid outline."""
    return browser.execute_script(
        """return [...document.querySelectorAll(arguments[0])].filter(
          (each) => getComputedStyle(each).outline.includes("solid"));""",
        selector,
    )


def press(browser: Any, *keys: str) -> None:
    """Presses keys one after the other, wherever the focus is."""
    from selenium.webdriver.common.action_chains import ActionChains

    for key in keys:
        ActionChains(browser).send_keys(key).perform()


def focused(browser: Any) -> Any:
    """The element that has the focus."""
    return browser.switch_to.active_element
