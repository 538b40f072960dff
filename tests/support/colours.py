"""Colours of the page in the browser: contrast, and how far apart they are to any eyes."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

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
    """The pixels of a picture, in bytes."""
    image = pytest.importorskip("matplotlib.image")
    return np.rint(image.imread(path)[..., :3] * 255).astype(int)
