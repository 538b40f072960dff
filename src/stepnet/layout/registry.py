"""All records by name, and the list of their files."""

from collections.abc import Iterable
from functools import cache
from importlib import import_module

import stepnet.layout.records as folder  # loaded first, as the function `records` hides the folder
from stepnet.compiler.values.arguments import instance
from stepnet.compiler.values.fork_guard import IMPORTS
from stepnet.errors import LayoutError
from stepnet.layout.record import Record

FILES = [
    "stepnet",
    "torch",
    "keras",
    "tf1",
    "cudnn",
    "onednn",
    "onnx",
    "openvino",
    "paddle",
    "mxnet",
    "flax",
    "haiku",
    "equinox",
    "mlx",
    "tflite",
    "coreml",
    "ncnn",
    "chainer",
    "cntk",
    "dl4j",
    "darknet",
    "haste",
    "flashrnn",
    "candle",
    "burn",
]


@cache
def records() -> dict[str, Record]:
    """Returns all known layouts (frameworks' arrangements of weights) as records by name, in the order of
    `FILES` and of each file; raises `LayoutError` if two have the same name.

    >>> [name for name in records() if name.startswith("mlx.")]
    ['mlx.rnn', 'mlx.gru', 'mlx.lstm']
    """
    by_name: dict[str, Record] = {}
    for file in FILES:
        with IMPORTS:
            module = import_module(f"{folder.__name__}.{file}")
        for entry in module.RECORDS:
            if entry.name in by_name:
                raise LayoutError(f"two records are called {entry.name}")
            by_name[entry.name] = entry
    return by_name


def record(name: str | Record) -> Record:
    """Looks up the record of a layout (a framework's arrangement of weights) by its name.

    Args:
        name: The name of a layout such as "torch.gru"; a record is returned as it is.

    Raises:
        LayoutError: For any other name, with names that are spelled alike.

    >>> record("torch.gru").arrays["weight_ih_l{L}{D}"]
    'W[(g:rzn h) x]'
    """
    if isinstance(name, Record):
        return name
    if instance(name, str, "a layout is a name, as 'torch.gru', or a Record") in records():
        return records()[name]
    raise LayoutError(f"no layout is called {name!r}{meant(name, records())}; `stepnet layouts` lists all")


def meant(name: str, known: Iterable[str]) -> str:
    """Returns a question for a message about an unknown name, with known names that are spelled alike; "" if
    there are none.

    >>> meant("rset", ["reset", "update"]), meant("x", records())
    (' (did you mean reset?)', '')
    """
    from difflib import get_close_matches

    near = get_close_matches(name, list(known), n=3)
    return f" (did you mean {' or '.join(near)}?)" if near else ""
