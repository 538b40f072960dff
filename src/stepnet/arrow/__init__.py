"""Models over Arrow record batches: `predict` runs over a stream of them, `Predictor` also one by one."""

from stepnet.arrow.predictor import Predictor, predict

__all__ = ["Predictor", "predict"]


def __dir__() -> list[str]:
    return sorted(__all__)
