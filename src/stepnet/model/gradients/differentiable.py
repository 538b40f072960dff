"""Net as a differentiable function of arrays, for the automatic differentiation of a framework.

    arrays, positions                 --ModelNet(...)-->        results            parameters are arrays too
    arrays, positions                 --Passes.forward-->       results, saved values
    arrays, cotangents, saved values  --Passes.backward-->      gradients
    arrays, cotangents                --net.gradient(...)-->    gradients, as a `DifferentiableNet`
    arrays, tangents                  --net.tangent(...)-->     tangents of results, as another one

Arrays are in the order of the net's inputs: sequences, initial memories, statics, parameters. Saved values
are arrays, as a framework keeps them itself. What is below this module is not for front ends of frameworks.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any, Generic, NamedTuple, Self, TypeVar

import numpy as np

from stepnet.compiler.grad.by_sequence import per_sequence
from stepnet.compiler.grad.stored_values import saving
from stepnet.compiler.net.ir import Net
from stepnet.compiler.net.types import Type
from stepnet.compiler.targets import (
    Bound,
    Call,
    Order,
    Results,
    checked_engine,
    choose,
    chunks_of,
    engine_named,
    gradient_order,
)
from stepnet.compiler.values.collector import paused_collector
from stepnet.compiler.values.once import computed_once, entry_of
from stepnet.compiler.values.records import dataclass
from stepnet.compiler.values.structure import leaves
from stepnet.errors import RefusedError
from stepnet.model.control import UncheckedCall
from stepnet.model.forms import FormedCall
from stepnet.model.gradients.addressed import TensorNet
from stepnet.model.gradients.pieces import Checkpoint
from stepnet.model.gradients.runs import GradientRun, Halved, gradient_net, tangents_of_net
from stepnet.model.gradients.strategy import gradient_run
from stepnet.model.model import Model
from stepnet.model.nets import Arrays, call_on, located_integers, run_net
from stepnet.model.products import products
from stepnet.model.program import Asked, NetProgram, Program
from stepnet.model.programs import Programs
from stepnet.ragged.positions import Positions

Array = np.ndarray
Kind = TypeVar("Kind", bound=Model)


class DifferentiableNet:
    """A net as a function of arrays with gradients, and a cache of the programs that compute them.

    Attributes:
        net: The net.
        inputs, results: The types (extent, features, dtype) of its inputs and results.
        floats: The positions of the floating-point results, which have cotangents.
    """

    def __init__(self, net: Net, program: NetProgram | None = None) -> None:
        """Makes a function, with gradients, of a net; its programs are compiled at their first use and
        cached. program: the program of the net, if there is one.
        """
        self.net, self._kept, self._run = net, OrderedDict[Any, Any](), program or NetProgram(net)
        self.inputs = [net.type_of(number) for number in net.inputs]
        self.results = [net.type_of(number) for number in net.results]
        self.floats = [place for place, type_ in enumerate(self.results) if type_.is_float]

    def __call__(self, arrays: Arrays, positions: Positions, engine: Order = "auto") -> list[Array]:
        """Returns the results of the net, without what its gradients need.

        arrays: the inputs of the net, with parameters that may differ at each call; None for initial memories
            of zeros.
        positions: where the steps of the sequences lie in the arrays.
        engine: the engines in order of preference.
        """
        # 1: the first output gets a buffer of its own, and all others may lie in one buffer.
        with located_integers(self.net, arrays, positions):
            return run_net(self._run, arrays, Call(positions), engine, 1)

    def passes(
        self, wanted: tuple[int, ...], checkpoint: Checkpoint = None, engine: Asked = "auto"
    ) -> "Passes":
        """Returns the forward and the backward pass for gradients of the inputs at positions `wanted`.

        checkpoint: the number of steps between saved memories; None saves the values of all steps.
        engine: an engine, or several in order of preference; `gradient_engines` says which of them run.
        """

        def made() -> Passes:
            """Makes the passes, which all calls with these arguments share."""
            order = self.gradient_engines(engine)
            run = gradient_run(self._kept, None, self.net, wanted, checkpoint, order)
            return Passes(self, wanted, order, run)

        return entry_of(self._kept, ("passes", wanted, checkpoint, checked_engine(engine)), made)

    def halves(
        self,
        wanted: tuple[int, ...],
        engine: Asked = "auto",
        is_each: bool = False,
        is_stored: bool = False,
    ) -> "FixedPasses":
        """Returns forward and backward passes that save a fixed number of values of known types, for a caller
        that holds these in a graph. The first engine decides whether recurrences run in chunks of steps.

        wanted: the positions of the inputs that get gradients.
        engine: an engine, or several in order of preference; engines that cannot run gradients are skipped.
        is_each: whether each sequence has gradients of the parameters of its own, instead of one sum. Raises
            `RefusedError` where the net has no such gradient.
        is_stored: whether `backward` takes cotangents in the dtypes of the results, also in half precision.
        """
        order = self.gradient_engines(engine)
        chunks = chunks_of(order)
        key = "halves", wanted, is_each, is_stored, chunks
        run = entry_of(self._kept, key, lambda: Halved.of(self.net, wanted, is_each, is_stored, chunks))
        return FixedPasses(self, wanted, order, run, is_stored)

    def refusal(self, engine: str, wanted: tuple[int, ...] = ()) -> str | None:
        """Returns why an engine cannot run the net; None if it can. engine: its name. wanted: the positions
        of the inputs that get gradients; without any, the net alone.
        """
        run = self.halves(wanted, engine).run if wanted else None
        programs = [self._run] if run is None else [run.first, run.second]
        reasons = (engine_named(engine).refuse(program.schedule_for(engine)) for program in programs)
        return next(filter(None, reasons), None)

    def products(self, positions: Positions, wanted: tuple[int, ...] | None = None) -> int:
        """Counts the floating-point operations of the matrix products of a call, or, with `wanted`, those of
        the backward pass for gradients of the inputs at these positions.

        positions: where the steps of the sequences lie in the arrays.
        """
        return products(self.net if wanted is None else self.halves(wanted).run.second.net, positions)

    def gradient_engines(self, engine: Asked) -> Order:
        """Returns the engines that run the net with gradients, which may be others than those asked for.

        Raises `RefusedError` if the engines asked for refuse the net itself, as a call without gradients
        does.
        """
        order = gradient_order(engine)
        if order != (asked := checked_engine(engine)):
            net = NetProgram(self.net)
            entry_of(self._kept, ("engines", asked), lambda: choose(net.schedule_for(asked), asked))
        return order

    def saving(self, dtype: str | None) -> "DifferentiableNet":
        """Returns the function with values for its backward pass alone stored in `dtype`, unless None."""
        if dtype is None:
            return self
        return entry_of(self._kept, ("saving", dtype), lambda: DifferentiableNet(saving(self.net, dtype)))

    def gradient(self, wanted: tuple[int, ...]) -> "DifferentiableNet":
        """Returns a differentiable function for the gradients of the inputs at positions `wanted`.

        It takes the inputs of this net, then the cotangents of the floating-point results.
        """
        return entry_of(
            self._kept, ("gradient", wanted), lambda: DifferentiableNet(gradient_net(self.net, wanted))
        )

    def tangent(self, moved: tuple[int, ...]) -> "DifferentiableNet":
        """Returns a differentiable function for the tangents of the floating-point results.

        It takes the inputs of this net, then the tangents of the inputs at positions `moved`. All other
        tangents are zeros.
        """
        return entry_of(
            self._kept, ("tangent", moved), lambda: DifferentiableNet(tangents_of_net(self.net, moved))
        )

    def per_sequence(self) -> "DifferentiableNet | None":
        """Returns the function with one total per sequence in place of each total over all sequences, such as
        the gradient of a parameter; None if the net has no such form.
        """

        def made() -> tuple[DifferentiableNet | None]:
            """Makes the function; in a tuple, as a cache cannot hold None."""
            try:
                return (DifferentiableNet(per_sequence(self.net)),)
            except RefusedError:
                return (None,)

        return entry_of(self._kept, "per sequence", made)[0]


@dataclass(frozen=True)
class Passes:
    """The forward and the backward pass of a net, for the gradients of some of its inputs.

    wanted: the positions of the inputs that get gradients.
    engine: the engines in order of preference.
    run: the programs of both passes.
    is_stored: whether cotangents have the dtypes of the results, also in half precision, and not those in
        which these are computed.
    """

    net: DifferentiableNet
    wanted: tuple[int, ...]
    engine: Order
    run: GradientRun
    is_stored: bool = False

    @property
    def saved(self) -> tuple[int, ...]:
        """The positions of the values that `backward` reads among the arrays that `forward` returns."""
        return self.run.saved

    @computed_once
    def calls(self) -> OrderedDict[Any, Any]:
        """The facts that a front end keeps of calls of these passes, by their forms."""
        return OrderedDict()

    def forward(self, arrays: Arrays, positions: Positions) -> list[Array]:
        """Returns the results of the net, followed by further values to save for the backward pass.

        arrays: the inputs of the net; None for initial memories of zeros.
        positions: where the steps of the sequences lie in the arrays.
        """
        with located_integers(self.net.net, arrays, positions):
            return self.run.forward(arrays, Call(positions), self.engine)

    def addressed(self, missing: Sequence[bool], positions: Positions) -> tuple[TensorNet, TensorNet] | None:
        """Returns the forward and the backward pass on the memory of tensors; None if a pass is not one net.

        The forward pass takes the inputs, the net's results and the further saved values. The backward pass
        takes the inputs, the cotangents, the saved values and the gradients.

        missing: for each input, whether it is a memory of zeros. positions: where the steps lie.
        """
        if not isinstance(self.run, Halved):
            return None
        first, second = self.run.first, self.run.second
        of_second = [*missing, *[False] * (len(second.net.inputs) - len(missing))]
        return (
            TensorNet(first, self.engine, positions, missing, self.run.separate),
            TensorNet(second, self.engine, positions, of_second, None),
        )

    def backward(
        self, arrays: Arrays, cotangents: Sequence[Array], saved: Sequence[Array], positions: Positions
    ) -> list[Array]:
        """Returns the gradients of the inputs at the positions `wanted`.

        arrays, positions: the arguments of the forward pass.
        cotangents: one for each floating-point result.
        saved: the arrays that the forward pass returned at the positions `self.saved`.
        """
        return self.run.backward(arrays, cotangents, saved, Call(positions), self.engine)


@dataclass(frozen=True)
class FixedPasses(Passes):
    """Passes that save values of a fixed number and known types, of every step."""

    run: Halved

    @property
    def types(self) -> list[Type]:
        """The types of the arrays that `forward` returns: the net's results, then further saved values."""
        net = self.run.first.net
        return [net.type_of(number) for number in net.results]

    @property
    def apart(self) -> "FixedPasses":
        """The same passes, with a buffer of its own for each array that `forward` returns."""
        return replace(self, run=replace(self.run, separate=None))

    @property
    def gradient_types(self) -> list[Type]:
        """The types of the gradients: each gradient has the type of its input."""
        return [self.net.inputs[place] for place in self.wanted]


class ModelNet(DifferentiableNet):
    """The net of a model for one kind of inputs, as a function of arrays that has gradients.

    Attributes:
        program: The program of the net, which has the structures of outputs and memories.
        names: The names of the inputs.
        outputs: The number of outputs, the first results; the others are final memories.
        memories, parameters: The numbers of memories, and of parameters, the last inputs.

    >>> from stepnet.model.recurrence import RNN
    >>> rnn = RNN(lambda x, h, W: (h + x * W, h + x * W), np.array([2.0]), memory=1, inputs=1)
    >>> net, positions = ModelNet.of(rnn), Positions.padded(np.array([2]), 2)
    >>> arrays = [np.array([[1.0], [10.0]]), None, np.array([3.0])]
    >>> [array.tolist() for array in net(arrays, positions)]
    [[[3.0], [33.0]], [[33.0]]]
    >>> passes = net.passes(wanted=(0, 2))
    >>> outputs, last, *_ = made = passes.forward(arrays, positions)
    >>> saved = [made[place] for place in passes.saved]
    >>> gradients = passes.backward(arrays, [np.zeros((2, 1)), np.ones((1, 1))], saved, positions)
    >>> [array.tolist() for array in gradients]
    [[[3.0], [3.0]], [11.0]]
    """

    def __init__(self, program: Program) -> None:
        """Stores a program of a model; the numbers of its parameters are not read."""
        super().__init__(program.net, program)
        self.program, self.names = program, [program.net.nodes[number].name for number in program.net.inputs]
        self.outputs, self.memories = len(program.levels), program.memories
        self.parameters = len(program.params)

    @classmethod
    def of(cls, model: Model) -> Self:
        """Returns the net of a model for its latest or declared inputs, without a copy of its parameters."""
        program = model.program
        zeros = (np.broadcast_to(np.zeros((), each.dtype), each.shape) for each in program.params)
        return cls(program.with_params([*zeros]))

    @computed_once
    def as_given(self) -> "ModelNet":
        """The net that takes and gives memories in the dtypes of a call, see `Program.as_given`."""
        program = self.program.as_given
        return self if program is self.program else ModelNet(program)

    def fixed(self, parameters: Sequence[Array]) -> "FixedNet":
        """Returns the net bound to parameters, which must not change."""
        return FixedNet(self.program.with_params([*parameters]))


class FixedNet:
    """The net of a model with fixed parameters, whose calls are prepared once they come again.

    Attributes:
        program: The program of the net with these parameters.
        memory: The structure of the memories, with a `Spec` for each.
        prepared: Runs a call of arrays if it was prepared, as `Programs.run_prepared` does.
    """

    def __init__(self, program: Program) -> None:
        """Stores a program with its parameters, to which kernels are bound at their first use."""
        self.program, self.memory, self._programs = program, program.memory, Programs[Program]()
        self.prepared = self._programs.run_prepared

    @property
    def params(self) -> list[Array]:
        """The parameters that the net is bound to."""
        return self.program.params

    def __call__(
        self,
        arrays: Arrays,
        positions: Positions,
        engine: Asked = "auto",
        formed: FormedCall | None = None,
        lead: tuple[int, ...] = (),
    ) -> list[Array]:
        """Returns the outputs, with the steps of all sequences in one axis, and the final memories.

        arrays: the inputs of the net, of which the parameters are not read; None for memories of zeros.
        positions: where the steps of the sequences lie in the arrays.
        engine: an engine, or several in order of preference.
        formed: the call that `prepared` returned. It is then prepared once it came often
            enough. None for a call that is never prepared.
        lead: the first two sizes of the arrays of such a call.
        """
        program, order = self.program, checked_engine(engine)
        call = call_on(program, arrays, Call(positions), None)
        # The first call makes many objects that are needed to its end: collecting garbage is wasted time.
        with nullcontext() if program.is_bound(order) else paused_collector():
            bound = program.bound(order)
            if formed is not None and not program.has_derived:
                self._programs.calls.prepare(formed, program, bound, call, lead)
            with located_integers(program.net, [*arrays, *program.params], positions):
                outputs, final, _ = program.split(bound(call))
        return [*outputs, *leaves(program.final(final))]


class SingleStep:
    """One step of a net on fixed arrays, whose contents may change between calls.

    One thread at a time may run it.

    Attributes:
        arrays: Four lists of arrays [rows, ...]: the sequences and the memories that the step reads, and the
            outputs and the memories that it writes.
    """

    def __init__(self, net: ModelNet, rows: int, memories: Sequence[Array | None] = ()) -> None:
        """Allocates the arrays for a number of rows (sequences) of a net without statics, values that each
        sequence has once.

        memories: arrays from which the step reads its memories, and which it overwrites with the next ones.
            The others, or all if there are none, are arrays of its own.
        """
        self.program, ends = net.program, net.program.ends

        def arrays(types: Sequence[Type], places: Sequence[int]) -> list[Array]:
            """Returns zeros for the inputs or results of these types at these positions."""
            return [np.zeros((rows, *types[place].shape), types[place].dtype) for place in places]

        self.arrays = (
            *(arrays(net.inputs, places) for places in (ends.sequences, ends.memories)),
            *(arrays(net.results, places) for places in (ends.steps, ends.rows)),
        )
        for place, array in enumerate(memories):
            if array is not None:
                self.arrays[1][place] = self.arrays[3][place] = array
        sequences, before, outputs, after = self.arrays
        positions = Positions.padded(np.ones(rows, np.int64), 1)
        self.call, self.into = Call(positions, sequences, before), Results(outputs, after)
        self.bound: Bound | None = None

    def bind(self, parameters: Sequence[Array], engine: Order) -> Callable[[], None]:
        """Binds the compiled step to parameters with their present values; returns the function that runs it.

        This may copy the parameters into the order in which machine code reads them.

        engine: the engines in order of preference; not read if the bound code can take other parameters.
        """
        if self.bound is None or not self.bound.rebind(parameters):
            self.bind_to(self.program.kernel(engine).bind(parameters))
        return self.run

    def bind_to(self, bound: Bound) -> Callable[[], None]:
        """Takes bound machine code, shared by other row counts; returns the function that runs it."""
        self.bound, self.run = bound, bound.again(self.call, self.into)
        return self.run


class NetCall(NamedTuple):
    """The net for the arguments of a call, and where the steps of its sequences lie.

    lead: the first two sizes of the arrays of sequences.
    """

    net: ModelNet
    positions: Positions
    lead: tuple[int, ...]


class ModelNets(Generic[Kind]):
    """The nets of a model as functions with gradients: one for each kind of inputs so far."""

    def __init__(self, model: Kind) -> None:
        """Stores a model; nets are made at first use."""
        self.model, self._kept = model, OrderedDict[Program, ModelNet]()

    def read(
        self,
        sequences: Any,
        initial: Any,
        statics: Any,
        lengths: Any,
        last_only: bool = False,
        time_major: bool = False,
    ) -> NetCall:
        """Checks the arguments of a call without reading their numbers; returns its net, and the positions of
        the sequences.

        It takes the arguments of `Model.__call__`, with arrays as sequences. With `last_only` the net returns
        only the last output of each sequence.
        """
        call = UncheckedCall(
            sequences, None, initial, statics, lengths, last_only, {"time_major": time_major}, "auto"
        )
        reading, _ = self.model.gradient_reading(call)
        net = entry_of(self._kept, reading.program, lambda: ModelNet(reading.program))
        return NetCall(net, reading.batch.positions, reading.batch.like)
