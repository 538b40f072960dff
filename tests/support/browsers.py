"""A headless Chromium, for the tests of pages."""

import shutil
from collections.abc import Iterator
from typing import Any

import pytest
from pages import SEEN


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
