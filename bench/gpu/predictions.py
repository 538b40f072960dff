"""The results expected before anything was measured, in the units of the results.

`design` is the estimate that the design of the GPU target was made with: from figures of other GPUs and other
people's measurements. `counted` was worked out from the instructions of the generated kernels, before they
first ran, with these figures of an H100: 1.755 GHz; a product of tensor cores m16n8k8 of tf32 in 2 cycles of
a multiprocessor, and 20 cycles until its sum can be added to; 128 bytes of shared memory in a cycle.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Prediction:
    """A number that was expected. least, most: its range. unit: of these."""

    what: str
    least: float
    most: float
    unit: str
    source: str


DESIGN = "design"
COUNTED = "counted"

PREDICTIONS = (
    Prediction("barrier of a grid of 132 blocks, cooperative groups", 1.1, 1.2, "us", DESIGN),
    Prediction("barrier of a grid of 132 blocks, a counter", 0.6, 1.0, "us", COUNTED),
    Prediction("a word handed to another block through the second cache", 0.16, 0.16, "us", DESIGN),
    Prediction("barrier of a cluster of 2", 0.45, 0.45, "us", DESIGN),
    Prediction("push to the blocks of a cluster of 2 to 16, and wait", 0.10, 0.15, "us", DESIGN),
    Prediction("push to the blocks of a cluster of 16, and wait", 0.25, 0.5, "us", COUNTED),
    Prediction("read from the second cache", 147, 236, "ns", DESIGN),
    Prediction("launch, one after another", 2, 3, "us", COUNTED),
    Prediction("rate of mma.sync beside wgmma, at 8 columns", 0.6, 0.6, "of 1", DESIGN),
    Prediction("step on one block", 0.25, 0.5, "us", DESIGN),
    Prediction("step in a cluster", 0.5, 0.8, "us", DESIGN),
    Prediction("step on a grid", 0.9, 1.4, "us", DESIGN),
    Prediction("step of units that are alone", 0.02, 0.05, "us", DESIGN),
    Prediction("step of units that are alone, read one step ahead", 0.5, 0.8, "us", COUNTED),
    Prediction("GRU 64 on one block, float32", 0.5, 0.8, "us", COUNTED),
    Prediction("GRU 128 on one block, float32", 1.3, 2.0, "us", COUNTED),
    Prediction("GRU 128 in a cluster of 8, float32", 0.6, 0.9, "us", COUNTED),
    Prediction("GRU 128 in a cluster of 8, bfloat16", 0.45, 0.7, "us", COUNTED),
    Prediction("GRU 256 in a cluster of 16, float32", 0.9, 1.3, "us", COUNTED),
    Prediction("GRU 256 on a grid of 16 blocks, float32", 1.8, 2.5, "us", COUNTED),
    Prediction("cuDNN, LSTM of 768 units, 16 sequences, float16", 1.96, 1.96, "us", DESIGN),
    Prediction("cuDNN, known cell, plain batch", 2, 2, "us", DESIGN),
    Prediction("a graph of products and elementwise kernels", 5, 8, "us", DESIGN),
    Prediction("driver compiles the PTX of a kernel of 512 units", 3, 8, "s", COUNTED),
)
