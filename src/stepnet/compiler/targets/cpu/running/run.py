"""The runner of a bound kernel: single calls, prepared calls, and steps of streams."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from stepnet.compiler.plan.waves import Waves
from stepnet.compiler.targets.base import (
    Array,
    BetweenKernels,
    Call,
    CalledSteps,
    PreparedCall,
    Results,
    Spec,
    Steps,
    TableLayout,
    called_again,
)
from stepnet.compiler.targets.cpu.machine.lazy import late_import
from stepnet.compiler.targets.cpu.machine.memory import POOL
from stepnet.compiler.targets.cpu.running.chain import KernelChain, idle_memories
from stepnet.compiler.targets.cpu.running.form import CallForm
from stepnet.compiler.targets.cpu.running.native import Native

if TYPE_CHECKING:
    from stepnet.compiler.native.frozen import FrozenCall


class Runner:
    """Runs calls of a bound kernel. Several Python threads may call it at the same time."""

    def __init__(self, native: Native) -> None:
        """Takes a kernel with its parameters, and makes the chain that runs it alone."""
        self.native, self.chain = native, KernelChain((native,), ((0,),))
        self.ends_early = native.ends_early

    def __call__(self, call: Call) -> Results:
        """Runs a call of this kernel (machine code with parameters) and returns its results; raises
        `InputError` if an index is outside its table.
        """
        if call.until is not None:
            made: Results = late_import("running.ending").Ending(self.chain, call).results()
            return made
        started = self.chain.started()
        results = started.add(call)
        started.run()
        return results

    def rebind(self, parameters: Sequence[Array]) -> bool:
        """Replaces the kernel's parameters; returns False, with no effect, if they are not C-contiguous."""
        return self.native.rebind(parameters)

    def rebind_at(self, addresses: Sequence[int], specs: Sequence[Spec]) -> bool:
        """Replaces the kernel's parameters by those at addresses; returns False if none were replaced yet."""
        return self.native.rebind_at(addresses)

    def packing_tasks(self) -> Sequence[Any] | None:
        """Returns the tasks of machine code that replace the kernel's parameters, for prepared calls; None if
        there is other work in it.
        """
        refill = self.native.refill
        return refill.lent_tasks() if refill is not None else None

    def frozen(self, call: Call, given: Array, structured: Callable[[Results], Any]) -> "FrozenCall | None":
        """Freezes a call, so that other processes can run it; None if it cannot be frozen. See
        `FreezingBound`.
        """
        known = list[Results]()
        return self.chain.frozen(
            lambda started: known.append(started.add(call)), (), given, lambda: structured(known[0])
        )

    def release(self) -> None:
        """Returns the kernel's memory to the pool. It must not be called afterwards."""
        POOL.give_back(self.native.constants)
        self.chain.release()

    def steps(self, call: Call, results: Results) -> Steps:
        """Prepares single steps of some rows (sequences) of this call, as a stream takes them. A step reads
        the memories (recurrent states) of `call` and writes those of `results`.
        """
        made: Steps | None = late_import("running.steps").steps_of(self.native, call, results)
        return made or CalledSteps(self, call, results)

    def again(self, call: Call, results: Results) -> Callable[[], None]:
        """Prepares a call for repeated runs; returns a function that runs it on the current contents of its
        arrays, and writes to the arrays `results`. Values that are computed once per sequence are computed
        again only if what they depend on has changed.
        """
        native = self.native
        if native.compiled.axes:  # inner sequences differ from call to call
            return called_again(self, call, results)
        form = CallForm(native.kind, call)
        arrays = form.arrays(call.sequences, call.initial, call.statics, results)
        native.begin(call, arrays)
        prepared = self.chain.prepared((call,), (arrays,))
        (run,) = prepared.runs
        run.held = [call, results, arrays, prepared]
        if form.finish is None and native.compiled.sequences is None and call.positions.is_full:
            return run
        seen = native.made_of(arrays)
        idle = idle_memories(native, call.positions, arrays)

        def run_whole() -> None:
            """Runs the call on the present contents of its arrays: the values per sequence (again if inputs
            have changed), the steps, and the work after them.
            """
            nonlocal seen
            now = native.made_of(arrays)
            if native.compiled.sequences is not None and now != seen:
                native.for_each_sequence(native.compiled.sequences, arrays)
            seen = now
            run()
            if idle is not None:
                idle()
            native.end(form, arrays)

        return run_whole

    def prepare(self, call: Call, layout: TableLayout | None = None) -> PreparedCall | None:
        """Prepares later calls with other arrays, which are then faster; None if they cannot be prepared.

        layout: how their sequences lie, which may have other lengths than those of this call; None if they
            have the same.
        """
        started = self.chain.started()
        started.add(call)
        return started.prepare_kernel(layout)


def chained(
    bounds: Sequence[Any], waves: Waves, lines: Waves, between: Sequence[BetweenKernels] = ()
) -> KernelChain | None:
    """Makes the chain that runs several kernels (compiled parts) in one go; None if one of them has work for
    NumPy, or is of another engine.

    bounds: the kernels with their parameters.
    waves, lines: groups of kernels that do not depend on each other, and the layers of each stack, by
    position.
    between: the operations that run between the kernels, such as sums over steps; None is returned if one has
    no machine code.
    """
    natives = [bound.native for bound in bounds if isinstance(bound, Runner) and bound.native.defers]
    if len(natives) < len(bounds):
        return None
    if between and any(late_import("running.across").refusal_of(each.across) for each in between):
        return None
    return KernelChain(natives, waves, lines, between)
