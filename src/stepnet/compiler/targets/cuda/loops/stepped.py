"""Estimates of a loop whose steps the host gives one by one, for recurrences that are too wide for a kernel.

A step is products of all sequences that still run, which read the weights once, and kernels between them. A
group of blocks that runs all steps in one launch reads the weights for each 16 sequences instead, and a
single block for each 4. Nothing of it was measured.
"""

from typing import NamedTuple

from stepnet.compiler.plan.plan import Plan
from stepnet.compiler.targets.cuda.device import DeviceFacts
from stepnet.compiler.targets.cuda.loops.step_plan import step_plan
from stepnet.compiler.targets.cuda.options import CudaOptions
from stepnet.compiler.targets.cuda.stage_costs import product_time
from stepnet.compiler.targets.cuda.stages import StageForm
from stepnet.compiler.targets.cuda.tensor.facts import facts_of

LAUNCH = 9.0
"""Microseconds of a launch, as measured on an H100; in a CUDA graph it takes less."""


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
        """The name of the resource that takes longer."""
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
    computed = sum(
        product_time(own.net, form.product_code(number), rows, options, facts_of(facts))
        for number in products
    )
    return SteppedTime(LAUNCH * (len(products) + len(kernels)), computed)
