"""Models over Arrow data: `predict` for a stream of record batches, `Predictor` also for single batches, and
`run` for files and folders.
"""

from stepnet.arrow.folders.running import Progress, Summary, run
from stepnet.arrow.predictor import Predictor, predict

__all__ = ["Predictor", "Progress", "Summary", "predict", "run"]

__dir__ = __all__.copy
