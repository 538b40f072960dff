"""The windows of steps that products read in place, and those that are copied."""

from collections.abc import Callable
from typing import Any

import pytest
from zoo import normal

import stepnet as sn
from stepnet.compiler.plan import Schedule

K, GROUPED, WIDE = normal(4, 6, 3), normal(4, 3, 3), normal(4, 6, 5)


def conv(x: Any, kernel: Any = K, **options: Any) -> Any:
    return sn.conv1d(x, kernel, **options)


MODELS: dict[str, tuple[Callable[[Any, Any], Any], int, int]] = {
    "one": (lambda x, p: conv(x), 1, 1),
    "relu and a residual": (lambda x, p: conv(sn.relu(conv(x)) @ p) + 1, 2, 2),
    "dilated, with a stride": (lambda x, p: conv(x, dilation=2, stride=3, padding=1), 1, 1),
    "two products of one window": (lambda x, p: conv(x) + conv(x, 2 * K), 1, 1),
    "of one step": (lambda x, p: conv(x, K[:, :, :1]), 1, 1),
    "two windows": (lambda x, p: conv(x) + conv(x, WIDE), 2, 2),
    "groups": (lambda x, p: conv(x, GROUPED, groups=2), 1, 0),
    "each feature alone": (lambda x, p: conv(x, normal(6, 1, 3), groups=6), 1, 0),
    "pooling": (lambda x, p: sn.max_pool1d(x, 3), 1, 0),
    "a product and pooling": (
        lambda x, p: conv(x) @ p[:4] + sn.avg_pool1d(x, 3, stride=1, padding=(2, 0)),
        1,
        0,
    ),
    "steps of one number": (lambda x, p: conv(x @ p[:, :1], K[:, :1]), 1, 0),
}


def windows_of(schedule: Schedule) -> tuple[int, int]:
    """The number of windows in a schedule, and how many of them products read in place."""
    windows = [part.results[0] for part in schedule.parts if part.kind == "across"]
    return len(windows), len({number for part in schedule.parts for number in part.windows})


@pytest.mark.parametrize("name", MODELS)
def test_windows_that_products_read_in_place(name: str):
    model, windows, in_place = MODELS[name]
    graph = sn.Graph(model, normal(6, 6) if "residual" not in name else normal(4, 6), inputs=6)
    assert windows_of(graph.schedule) == (windows, in_place)
