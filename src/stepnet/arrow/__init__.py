"""Models over Arrow record batches: `predict` runs over a stream of them, `Predictor` also one by one, and
`run` over files and folders.
"""

from stepnet.arrow.folders.running import run
from stepnet.arrow.folders.summary import Progress, Summary
from stepnet.arrow.predictor import Predictor, predict

__all__ = ["Predictor", "Progress", "Summary", "predict", "run"]


def __dir__() -> list[str]:
    return sorted(__all__)
