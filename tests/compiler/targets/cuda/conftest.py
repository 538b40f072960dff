"""Set-up of the tests of the target for GPUs."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from stepnet.compiler.targets import engine_named
from stepnet.compiler.targets.cuda import EmulatedDevice


@pytest.fixture
def shuffle_threads(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Makes the threads of the emulated device take turns in another order, which a seed gives."""
    engine: Any = engine_named("cuda-emulated")
    return lambda seed: monkeypatch.setattr(engine.device, "seed", seed)


@pytest.fixture
def views() -> Iterator[None]:
    """Makes each block of the emulated device see new arrays through a view of its own (`views.py`)."""
    engine: Any = engine_named("cuda-emulated")
    engine.device.arena, engine.device.arena_used = np.full(2**20, 0xFF, np.uint8), 0
    yield
    engine.device.arena = None


@pytest.fixture
def codes(done: "Done") -> list[Any]:
    """The codes of the kernels that emulated devices launch, as they do."""
    return done.codes


class Done(list[str]):
    """Words for the work of emulated devices. codes: the codes of the kernels that were launched."""

    def __init__(self) -> None:
        super().__init__()
        self.codes = list[Any]()


@pytest.fixture
def done(monkeypatch: pytest.MonkeyPatch) -> Done:
    """The work of emulated devices as it is done: "loop", "loop of groups", "stage 5" of 5 entries and other
    launches by the first word of their names, and copies: "write", "read", "copy" and "clear".
    """
    made = Done()

    def word(code: Any, blocks: int, words: Any) -> str:
        """The word for a launch."""
        made.codes.append(code)
        name = code.name.split()[0].strip(",")
        more = {"loop": " of groups" if code.group > 1 else "", "stage": f" {words[0]}"}
        return name + more.get(name, "")

    for name in ("launch", "write", "read", "copy", "clear"):
        old: Any = getattr(EmulatedDevice, name)

        def noted(device: EmulatedDevice, *arguments: Any, name: str = name, old: Any = old) -> None:
            made.append(word(*arguments) if name == "launch" else name)
            old(device, *arguments)

        monkeypatch.setattr(EmulatedDevice, name, noted)
    return made
