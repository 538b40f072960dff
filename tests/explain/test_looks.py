"""The page can be read, in light and dark, and any eyes can tell its colours apart."""

import re
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from colours import COLOURS, contrast, difference, seen
from pages import SCHEMES, many, of_conversion, of_seed, one, page, shown
from seeds import SEEDS


@pytest.mark.parametrize("scheme", SCHEMES)
def test_every_text_can_be_read(browser: Any, tmp_path: Path, scheme: str):
    for text in (of_seed("gru"), of_seed("lstm")):
        shown(browser, tmp_path, text, scheme)
        pairs = browser.execute_script(COLOURS, "body *:not(script)")
        assert len(pairs) > 100
        for ink, paper, what in pairs:
            assert contrast(ink, paper) >= 4.5, (what, ink, paper)  # WCAG 2.2, 1.4.3, level AA


@pytest.mark.long(each=True)
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


@pytest.mark.long(each=True)
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
