"""Parts of a schedule that run beside each other on a GPU: a chain, as schedules run those.

waves    parts that do not depend on each other    on streams, if their loops fit on the GPU
lines    layers of a stack                         as wavefronts of chunks of their steps (`wavefront.py`)

Every other part joins the streams, and runs behind them.
"""

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import field
from functools import partial
from typing import Any

from stepnet.compiler.net.types import Extent
from stepnet.compiler.plan.load import CallSize
from stepnet.compiler.plan.schedule import Part
from stepnet.compiler.plan.waves import Waves, order_of, runs_of
from stepnet.compiler.targets.base import (
    BetweenKernels,
    Call,
    KernelLinks,
    Links,
    OptionalArrays,
    OwnedMemory,
    Places,
    PreparedCall,
    Results,
    TableLayout,
)
from stepnet.compiler.targets.cuda.device import Array, DeviceArray, keeping
from stepnet.compiler.targets.cuda.kernel import BoundPlan, CudaKernel
from stepnet.compiler.targets.cuda.loops.beside import (
    COSTS,
    ESTIMATED,
    LayersAsWavefronts,
    LoopLoad,
    LoopsAtOnce,
    PartPlace,
    StreamCosts,
    as_wavefronts,
    at_once,
    load_of,
)
from stepnet.compiler.targets.cuda.loops.wavefront import (
    ChunkedArray,
    ChunkedLayer,
    device_arrays,
    is_divisible,
    suiting,
)
from stepnet.compiler.targets.cuda.streams import Fork
from stepnet.compiler.values.records import dataclass
from stepnet.ragged.positions import Positions

Decision = LoopsAtOnce | LayersAsWavefronts


def decided(
    kernels: Sequence[CudaKernel], waves: Waves, lines: Waves, rows: int, steps: int, costs: StreamCosts
) -> list[tuple[tuple[int, ...], Decision]]:
    """Decides how those kernels run that have loops and may run beside each other, for calls of `rows`
    sequences of up to `steps` steps; returns their places, and how.

    waves, lines: the places of kernels that do not depend on each other, and of layers of stacks.
    """
    facts = kernels[0].memory.device.facts

    def loads_of(places: Sequence[int], share: int) -> list[LoopLoad]:
        """Estimates the share of the GPU that each kernel's loop takes if `share` of them run at the same
        time.
        """
        made = list[LoopLoad]()
        for place in places:
            kernel = kernels[place]
            if kernel.is_idle:
                made.append(LoopLoad(0.0, 0.0, is_divisible=False))
            else:
                divisible = is_divisible(kernel) and not kernel.of_chunks.loop(rows).by_steps
                loop = kernel.sharing(share).loop(rows)
                made.append(load_of(loop, rows, facts, divisible, costs.unknown))
        return made

    found = list[tuple[tuple[int, ...], Decision]]()
    for wave in waves:
        places = tuple(place for place in wave if not kernels[place].is_idle)
        if len(places) > 1:
            found.append((places, at_once(partial(loads_of, places), steps, costs)))
    return found + [(line, as_wavefronts(partial(loads_of, line), steps, costs)) for line in lines]


def decided_of(
    parts: Sequence[Part], kernels: Mapping[int, CudaKernel], size: CallSize
) -> list[tuple[tuple[int, ...], Decision]]:
    """Decides how parts of a schedule run beside each other in calls of a size; returns their places, and
    how.

    kernels: the kernels of parts that can be in a chain, by place.
    """
    found = list[tuple[tuple[int, ...], Decision]]()
    for indices in runs_of(parts, kernels.__contains__):
        some = [kernels[index] for index in indices if index in kernels]
        order = order_of([parts[index] for index in indices])
        if some:
            for places, decision in decided(
                some, order.waves, order.lines, size.filled, size.longest, ESTIMATED
            ):
                found.append((tuple(indices[place] for place in places), decision))
    return found


@dataclass(frozen=True)
class CudaChain:
    """Kernels of which some run beside each other.

    bounds: the kernels. waves, lines: by place, the kernels that do not depend on each other, and the layers
        of stacks.
    """

    bounds: Sequence[BoundPlan]
    waves: Waves
    lines: Waves

    def started(self) -> "CudaRun":
        """Begins a run of the chain, in which each part runs when its call is added."""
        return CudaRun(self)

    def release(self) -> None:
        """Does nothing: the chain has no memory of its own."""

    def places(self, place: int, positions: Positions) -> Mapping[int, PartPlace]:
        """Chooses the streams of the part at a place and of the parts that may run beside it; empty if it
        runs alone. positions: the positions of the sequences of its call.
        """
        rows, steps = positions.rows, int(positions.lengths.max(initial=0))
        costs = COSTS.get()
        if not rows or costs is None:
            return {}
        waves = tuple(wave for wave in self.waves if place in wave)
        lines = tuple(line for line in self.lines if place in line)
        found = dict[int, PartPlace]()
        kernels = [bound.kernel for bound in self.bounds]
        for places, decision in decided(kernels, waves, lines, rows, steps, costs):
            found |= zip(places, decision.places, strict=False)
        return found


def chained(
    bounds: Sequence[Any], waves: Waves, lines: Waves, between: Sequence[BetweenKernels]
) -> CudaChain | None:
    """Makes the chain of some parts; None if none of them can run beside another, if one reads a table, after
    which the host looks at the device, or if there are operations between them.
    """
    if between or any(not isinstance(bound, BoundPlan) or bound.kernel.has_tables for bound in bounds):
        return None
    if len(bounds) > 1 and not lines and all(len(wave) == 1 for wave in waves):
        return None
    return CudaChain(bounds, waves, lines)


@dataclass
class MadeArray:
    """An array that a side stream has made. mark: behind it. chunked: its chunks, if it has some."""

    array: DeviceArray
    stream: int
    mark: Any
    chunked: ChunkedArray | None


@dataclass
class CudaRun:
    """A run of a chain. Work goes to side streams from the first part on that runs beside another, until a
    part that does not.

    calls: the calls of the parts so far. made: the arrays of the present fork, by identity. kept: memory of
    another library that side streams have.
    """

    chain: CudaChain
    calls: list[Call] = field(default_factory=list[Call])
    found: dict[int, PartPlace] = field(default_factory=dict[int, PartPlace])
    made: dict[int, MadeArray] = field(default_factory=dict[int, MadeArray])
    kept: list[OwnedMemory] = field(default_factory=list[OwnedMemory])
    stack: ExitStack = field(default_factory=ExitStack)
    fork: Fork | None = None

    def add(self, call: Call) -> Results:
        """Runs the next part; returns its results, which it fills by the end of the run."""
        place = len(self.calls)
        self.calls.append(call)
        if place not in self.found:
            self.found |= self.chain.places(place, call.positions)
        bound, where = self.chain.bounds[place], self.found.get(place)
        if where is None:
            self.close()
            return bound(call)
        bound = bound.sharing(where.share)
        if self.fork is None:
            self.fork = self.stack.enter_context(bound.kernel.memory.device.forked())
        with self.on(self.fork, where.stream):
            if where.chunks > 1:
                return self.add_layer(self.fork, bound, call, where)
            self.follow(self.fork, call.given, where.stream)
            results = bound(call)
            self.note(self.fork, results, where.stream, {})
            return results

    def add_layer(self, fork: Fork, bound: BoundPlan, call: Call, where: PartPlace) -> Results:
        """Runs a part in chunks of its steps; returns its results."""
        facts, sequences = (call, where.chunks, bound.kernel.plan.reverse), device_arrays(call.sequences)
        given = [suiting(self.chunked(array), *facts) for array in sequences]
        known = {id(array) for array, made in zip(sequences, given, strict=True) if made is not None}
        self.follow(fork, [array for array in call.given if id(array) not in known], where.stream)
        layer = ChunkedLayer(bound.of_chunks(), call, where.chunks, fork, given)
        results = layer.run()
        self.note(fork, results, where.stream, layer.chunked())
        return results

    def chunked(self, array: DeviceArray) -> ChunkedArray | None:
        """Returns the chunks of an array; None if it has none."""
        made = self.made.get(id(array))
        return None if made is None else made.chunked

    def follow(self, fork: Fork, arrays: OptionalArrays, stream: int) -> None:
        """Makes the current stream wait for the arrays that other streams compute. stream: its number."""
        for array in arrays:
            made = self.made.get(id(array))
            if made is not None and made.stream != stream:
                fork.after(made.mark)

    def note(self, fork: Fork, results: Results, stream: int, chunked: Mapping[int, ChunkedArray]) -> None:
        """Notes the results of a part, and the outputs that are there in chunks, by place."""
        mark = fork.mark()
        for place, array in enumerate(device_arrays(results.arrays)):
            self.made[id(array)] = MadeArray(array, stream, mark, chunked.get(place))

    @contextmanager
    def on(self, fork: Fork, stream: int) -> Generator[None]:
        """Context in which work goes to a side stream, and all memory of other libraries is kept."""
        with fork.on(stream), keeping(self.kept):
            yield

    def add_across(self, values: Sequence[Array], positions: Callable[[Extent], Positions]) -> Array:
        """Raises `NotImplementedError`: there are no operations between the parts of a chain here."""
        raise NotImplementedError

    def run(self) -> None:
        """Joins the streams: all work was given when the parts were added."""
        self.close()

    def close(self) -> None:
        """Joins the streams, if there are some."""
        self.fork = None
        self.stack.close()
        self.made.clear()
        self.kept.clear()

    def prepare(
        self,
        links: Links,
        positions: Mapping[str, Positions] | None = None,
        layout: TableLayout | None = None,
        /,
    ) -> PreparedCall | None:
        """Prepares the chain for later runs on other arrays of the same lengths; None for any lengths.

        links: the values that each part reads and computes. positions: the positions of sequences of any
            lengths.
        layout: the way in which these lie.
        """
        self.close()
        if positions is not None or layout is not None:
            return None
        chain, calls = self.chain, self.calls

        def run(given: OptionalArrays, places: Places | None) -> Results:
            """Runs the chain on other arrays; returns its results."""
            values, again = dict(zip(links.inputs, given, strict=True)), CudaRun(chain)
            try:
                for call, link in zip(calls, links.kernels, strict=True):
                    results = again.add(call_with(call, link, values))
                    values.update(zip(link.results, results.arrays, strict=False))
            finally:
                again.close()
            arrays: list[Any] = [values[number] for number in links.results]
            return Results(arrays[: links.outputs], arrays[links.outputs : links.rows], arrays[links.rows :])

        return PreparedCall(run, 0)


def call_with(call: Call, links: KernelLinks, values: Mapping[int, Any]) -> Call:
    """Returns a call like another one on other values, by number; none for a memory of zeros."""
    sequences, statics = ([values[n] for n in numbers] for numbers in (links.sequences, links.statics))
    memories = [None if number < 0 else values[number] for number in links.memories]
    return call.with_arrays(sequences, memories, statics, call.last_only)
