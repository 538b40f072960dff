"""Times PyTorch's recurrences on the same GPU in other numbers than float32, and for large batches.

cuDNN in float32, loops and compiled loops are beside stepnet in `python -m bench --group gpu`.
"""

from typing import Any

import torch

from bench.gpu.place import Place, Rows

STEPS = 1024
WIDTHS, BATCHES, LARGE = (256, 64, 512, 128, 1024), (1, 16, 64), (64, 128, 256, 512, 1024)
CELLS = {"gru": torch.nn.GRU, "lstm": torch.nn.LSTM}
NUMBERS = {
    "bfloat16": (torch.bfloat16, True),
    "float16": (torch.float16, True),
    "float32, TF32 allowed": (torch.float32, True),
    "float32": (torch.float32, False),
}
"""The dtype of a module, and whether float32 products may be rounded to TF32."""


def versions() -> dict[str, Any]:
    """Returns the versions of PyTorch and its libraries."""
    return {
        "torch": torch.__version__,
        "cudnn": torch.backends.cudnn.version(),
        "cuda": torch.version.cuda,
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "none",
    }


def module_times(place: Place) -> Rows:
    """Yields the microseconds of a step of cuDNN's layers by PyTorch's choice, by the batch."""
    yield "versions", versions()
    for numbers in place.sized(tuple(NUMBERS), ("float32",)):
        for cell in CELLS:
            for width in place.sized(WIDTHS, (16,)):
                yield f"{cell} {width}, {numbers}", times_of(place, cell, width, numbers, BATCHES)


def large_batch_times(place: Place) -> Rows:
    """Yields the microseconds of a step of PyTorch's GRU for large batches."""
    for numbers in place.sized(("float32", "bfloat16", "float16"), ("float32",)):
        for width in place.sized((64, 128, 256), (16,)):
            yield f"gru {width}, {numbers}", times_of(place, "gru", width, numbers, LARGE)


@torch.inference_mode()
def times_of(place: Place, cell: str, width: int, numbers: str, batches: tuple[int, ...]) -> dict[str, float]:
    """Returns the microseconds of a step of one layer, with the products over inputs, by the batch."""
    dtype, allowed = NUMBERS[numbers]
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = allowed
    module, steps = CELLS[cell](width, width).to(place.torch_device, dtype).eval(), place.sized(STEPS, 4)
    found = dict[str, float]()
    for batch in place.sized(batches, (2,)):
        x = torch.randn(steps, batch, width, device=place.torch_device, dtype=dtype)
        found[str(batch)] = place.seconds(lambda x=x: module(x)) / steps * 1e6
    return found
