"""Features of the frames of sounds: the energies of 16 bands, as logarithms."""

import numpy as np
from sounds import FRAME, WINDOW

Array = np.ndarray
BANDS = 16
QUIET = 1e-8
"""An energy that is added to those of bands."""


def bands() -> Array:
    """Returns the part of each of 65 frequencies in each band: triangles [65, 16], wider for higher ones,
    which add up to 1.
    """
    middles = np.expm1(np.linspace(0, np.log1p(FRAME / 6), BANDS)) * 6
    places = np.arange(FRAME + 1)
    rows = [np.interp(places, middles, np.eye(BANDS)[band]) for band in range(BANDS)]
    return np.stack(rows, 1).astype(np.float32)


def spectra(samples: Array) -> Array:
    """Returns the spectra [frames, 65] of samples [64 frames]: of each frame and the one before."""
    padded = np.concatenate([np.zeros(FRAME), samples]).reshape(-1, FRAME)
    return np.fft.rfft(np.concatenate([padded[:-1], padded[1:]], 1) * WINDOW).astype(np.complex64)


def features(spectrum: Array) -> Array:
    """Returns the logarithms of the energies of bands [..., 16]."""
    return np.log(np.square(np.abs(spectrum)) @ bands() + np.float32(QUIET))
