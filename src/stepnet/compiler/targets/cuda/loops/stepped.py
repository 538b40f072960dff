"""Estimates of a loop whose steps the host gives one by one, for recurrences that are too wide for a kernel.

A step is products of all sequences that still run, which read the weights once, and kernels between them. A
group of blocks that runs all steps in one launch reads the weights for each 16 sequences instead, and a
single block for each 4. Nothing of it was measured.
"""

from math import ceil
from typing import NamedTuple

from stepnet.compiler.plan.plan import Plan
from stepnet.compiler.targets.cuda.device import DeviceFacts
from stepnet.compiler.targets.cuda.loops.step_plan import step_plan
from stepnet.compiler.targets.cuda.options import CudaOptions
from stepnet.compiler.targets.cuda.stages import StageForm
from stepnet.compiler.targets.cuda.tensor.facts import TensorFacts, facts_of

LAUNCH = 9.0
"""Microseconds of a launch, as measured on an H100; in a CUDA graph it takes less."""
FLOPS = {"float32": 55e6, "tf32": 120e6, "bfloat16": 180e6, "plain": 17e6}
"""Operations of a product in a microsecond, by how it multiplies: as expected of an H100; "plain" of float64,
and as an estimate of all others."""
TILE, FEW, MANY = 16, 1e6, 2e6
"""The rows of the smallest tile of a product, and the bytes of weights that products of so many rows, and of
more, read in a microsecond."""


class SteppedTime(NamedTuple):
    """The microseconds of a step: of its launches, and of its products."""

    launches: float
    products: float

    @property
    def total(self) -> float:
        """The microseconds of both."""
        return self.launches + self.products

    @property
    def bound(self) -> str:
        """The name of what takes longer."""
        return "products" if self.products > self.launches else "launches"


def step_time(plan: Plan, rows: int, facts: DeviceFacts, options: CudaOptions) -> SteppedTime | None:
    """Estimates the time of a step that the host gives; None if steps cannot be given one by one, or have no
    products of large matrices.
    """
    own = step_plan(plan)
    if own is None:
        return None
    form = StageForm(own, "sequence")
    products = [number for number in form.own if form.is_product(number)]
    kernels = {form.depths[number] for number in form.own if not form.is_product(number)}
    if not products:
        return None
    computed = sum(product_time(form, number, rows, options, facts_of(facts)) for number in products)
    return SteppedTime(LAUNCH * (len(products) + len(kernels)), computed)


def product_time(form: StageForm, number: int, rows: int, options: CudaOptions, facts: TensorFacts) -> float:
    """Estimates the microseconds of a product of all sequences."""
    code = form.product_code(number)
    dtype, sizes = form.net.type_of(number).dtype, [form.net.type_of(right).size for right in code.rights]
    way = "bfloat16" if code.is_rounded else options.way(dtype, *code.stored)
    flops = FLOPS.get(way.partition("-")[0], FLOPS["plain"])
    vectors = ceil(rows * form.net.type_of(number).size / form.net.type_of(code.rights[0]).shape[-1])
    padded = TILE * ceil(vectors / TILE)
    read = sum(sizes) * (8 if dtype == "float64" else 4) / (FEW if padded == TILE else MANY)
    return max(facts.slowness * 2 * padded * sum(sizes) / flops, facts.slowness_of_memory * read)
