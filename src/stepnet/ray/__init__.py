"""Models over datasets of Ray: `predict` gives a dataset with a column of results, computed by actors.

Importing this imports Ray, which importing stepnet alone does not.
"""

from stepnet.ray.predict import predict
from stepnet.ray.worker import WorkerError

__all__ = ["WorkerError", "predict"]


def __dir__() -> list[str]:
    return sorted(__all__)
