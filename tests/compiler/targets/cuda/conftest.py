"""Set-up of the tests of the target for GPUs."""

from collections.abc import Callable
from typing import Any

import pytest

from stepnet.compiler.targets import engine_named


@pytest.fixture
def shuffle_threads(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Makes the threads of the emulated device take turns in another order, which a seed gives."""
    engine: Any = engine_named("cuda-emulated")
    return lambda seed: monkeypatch.setattr(engine.device, "seed", seed)
