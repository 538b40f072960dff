"""Models over datasets of Ray: `predict` adds a column of results, which Ray's actors compute.

To import this module imports Ray; to import stepnet alone does not.
"""

from stepnet.ray.predict import predict
from stepnet.ray.worker import WorkerError

__all__ = ["WorkerError", "predict"]

__dir__ = __all__.copy
