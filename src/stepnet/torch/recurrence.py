"""`Recurrence`: any step written with PyTorch as a module that runs over sequences, and is trained."""

import inspect
from collections import OrderedDict
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, cast

from stepnet.compiler.targets import checked_engine
from stepnet.compiler.trace.reads import Latest, Reads
from stepnet.compiler.values.arguments import unknown_argument
from stepnet.compiler.values.once import put_latest
from stepnet.compiler.values.structure import (
    arranged,
    leaves,
    leaves_as,
    named_leaves,
    rebuild,
    skeleton,
    transform,
)
from stepnet.errors import InputError
from stepnet.model.gradients.pieces import Checkpoint, checked_checkpoint, checked_saved
from stepnet.model.program import Asked
from stepnet.model.recurrence import RNN
from stepnet.torch.arrays import in_dtypes
from stepnet.torch.bound import BOUND, DifferentiableLayers
from stepnet.torch.decompositions import scan
from stepnet.torch.keys import MODULES, registered
from stepnet.torch.known_calls import KNOWN, Found, noted, run_known
from stepnet.torch.loop import Turns, looped
from stepnet.torch.meta import parameters_with_numbers, with_numbers
from stepnet.torch.operator import in_graph, reason_in_graph
from stepnet.torch.pytorch import pytorch
from stepnet.torch.quantizing import Qconfig
from stepnet.torch.reads import check_others, reads_of
from stepnet.torch.recording import (
    called,
    check_no_proxy,
    constant_in_graphs,
    is_recorded,
    refuse_script,
    run_pre_hooks,
    untraced,
)
from stepnet.torch.sequences import (
    DTYPES,
    HOST,
    LENGTHS,
    MASKS,
    REFUSED,
    STATES,
    ModuleSequences,
    check_axes,
    data_of,
    dtypes_refused,
    has_own_functions,
    is_autocast,
    named_tensors,
    run_or,
    runs_on,
    tensors_named,
    text_of_engine,
    text_of_refusal,
)
from stepnet.torch.trace import OfFunction, OfModule, described, tensors_of, trace

torch: Any = pytorch("torch")
MEANT = {
    **dict.fromkeys(STATES, "the state before the first step is state="),
    **dict.fromkeys(
        LENGTHS, "sequences of different lengths are a PackedSequence, or a jagged nested tensor"
    ),
    **dict.fromkeys(
        MASKS,
        "padding is left out by a PackedSequence; a mask of other steps is an input of the step, as in "
        "torch.where(mask, new, old)",
    ),
    **dict.fromkeys(
        ("batch_first", "reverse", "checkpoint", "engine", "saved"), "it is an argument of Recurrence(...)"
    ),
}
"""Advice for arguments that calls of other modules have, by their names."""
dispatch: Any = pytorch("torch.utils._python_dispatch")
functorch: Any = pytorch("torch._functorch.pyfunctorch")
RUNNABLE = "_runnable"
"""Attribute in which a module keeps its compiled steps, by the arguments that each was traced for."""
LOWERED = "_lowered"
"""Attribute in which a module keeps the dtypes of its step's results under autocast."""


class Recurrence(torch.nn.Module):
    """Module that runs a cell, or a function on tensors, over sequences [time, batch, ...], with gradients of
    any order. With `batch_first=True` they are [batch, time, ...], as `Scan` has them by default.

    Its parameters are those of the cell, under `cell.`; of a function, those of the example, under `params.`.
    A call takes sequences as `GRU` does, also one alone, [time, ...] with a state without an axis of the
    batch, the state that they begin with (zeros without one) and `statics`, whose features may have other
    sizes than in the example, such as another number of keys: the step is traced once for each. It gives
    (outputs, last state), the state in the structure of the example's. On the CPU and on
    GPUs it runs in machine code, on devices that its engine does not take as a loop of PyTorch's operations.

    Args:
        step: A cell module or a function, as for `trace`.
        example: The arguments of one call, as for `trace`. A function's parameters are a dict of tensors.
        statics: An example of the statics.
        batch_first: Whether tensors of sequences are [batch, time, ...] and not [time, batch, ...].
        reverse: Whether each sequence runs from its last step.
        checkpoint: What is kept for gradients, as of `GRU`; an attribute that may be set.
        engine: An engine, or several in order of preference, as of `GRU`; an attribute that may be set.
        saved: The dtype of values for gradients alone, as of `GRU`; an attribute that may be set.

    Raises:
        InputError: For what is no step, for an engine that is not known, and for a tensor that the step uses
            besides its parameters and that requires a gradient, which it would not get.
        RefusedError: In a call, if no engine of `engine` runs the step.
        StepError: For an operation that no step has.

    >>> import torch, stepnet.torch
    >>> cell = torch.nn.GRUCell(3, 4)
    >>> rnn = stepnet.torch.Recurrence(cell, (torch.zeros(1, 3), torch.zeros(1, 4)))
    >>> outputs, h = rnn(torch.ones(5, 2, 3))
    >>> outputs.sum().backward()
    >>> outputs.shape, h.shape, cell.weight_hh.grad.shape
    (torch.Size([5, 2, 4]), torch.Size([2, 4]), torch.Size([12, 4]))
    """

    __prepare_scriptable__ = refuse_script
    _call_impl = called
    qconfig = Qconfig()

    def __init__(
        self,
        step: Any,
        example: Any,
        *,
        statics: Any = None,
        batch_first: bool = False,
        reverse: bool = False,
        checkpoint: Checkpoint = None,
        engine: Asked = "auto",
        saved: str | None = None,
    ) -> None:
        """Traces a step to check it, registers its parameters with the module, and compiles it. The arguments
        are those of the class.
        """
        super().__init__()  # type: ignore[misc]
        self.batch_first, self.reverse, self._latest = batch_first, reverse, Latest()
        self.checkpoint, self.engine = checked_checkpoint(checkpoint), checked_engine(engine)
        self.saved = checked_saved(saved)
        known, known_statics = transform(with_numbers, (example, statics))
        with parameters_with_numbers(step):
            trace(step, known, statics=known_statics, reverse=reverse)  # raises errors about the step
        check_example(example)
        if isinstance(step, torch.nn.Module):
            self.cell, self.step = step, None
        else:
            self.cell, self.step = None, step
        self.params = torch.nn.ParameterDict(example[2] if len(example) == 3 and example[2] else {})
        self._example = transform(lambda tensor: tensor.detach().clone(), (*known[:2], known_statics))
        check_others(self.reads)
        self._output = self.enter().net.program.output

    def forward(
        self,
        input: Any,  # noqa: A002 - PyTorch's
        state: Any = None,
        statics: Any = None,
        **unknown: Any,
    ) -> Any:
        """Runs the step over the sequences `input`, from the initial `state` (None: zeros).

        Returns the outputs, in the form of the sequences, and the last state. statics: values for all steps.
        Raises `ArgumentError` for an argument by another name.
        """
        check_no_proxy(unknown)
        if unknown:
            refuse_unknown(*unknown)
        run_call, found = Recurrence.run_call, None
        if state is None and torch.is_grad_enabled() and not torch.compiler.is_compiling():
            results, found = untraced(run_known)(self, input)
            if results is not None:
                return self.in_form(results)
        graph = is_recorded() and runs_on(data_of(input).device, self.engine)
        run = run_call if graph else untraced(run_call)
        return run(self, input, state, statics, graph, found)

    def tensors_and_settings(self) -> tuple[list[Any], tuple[Any, ...]] | None:
        """Returns the parameters and buffers, and the settings of which calls depend; None for a step that
        takes statics (values for all steps).
        """
        if self._example[2] is not None:
            return None
        return [*self.tensors.values()], (self.training, self.reverse, self.reads)

    def in_form(self, results: Sequence[Any]) -> Any:
        """Returns outputs and last states in the structures of the step's."""
        count = len(results) - len(leaves(self._example[1]))
        return rebuild(self._output, [*results[:count]]), rebuild(self._example[1], [*results[count:]])

    def run_call(self, value: Any, state: Any, statics: Any, graph: bool, found: Found | None = None) -> Any:
        """Implements `forward`: reads and checks its arguments, and runs the step on the device of the data.

        Returns the outputs, in the form of the sequences `value`, and the last state. A `PackedSequence` may
        sort its sequences: states and statics (values that each sequence has once) are brought into this
        order, and the last state out of it. graph: whether PyTorch makes a graph, which gets an operator.
        found: the weights and the kind of a call that later ones like it need not check; None for others.
        """
        x, memory, example_statics = self._example
        states = [] if state is None else tensors_of_argument(state, memory, "state")
        static_tensors = tensors_of_argument(statics, example_statics, "statics")
        # One sequence [time, ...] has as many axes as the example [rows, ...].
        alone = isinstance(value, torch.Tensor) and not value.is_nested and value.dim() == x.dim()
        axis = 0 if self.batch_first else 1
        if alone:
            value = value.unsqueeze(axis)
            states, static_tensors = (
                [tensor.unsqueeze(0) for tensor in group] for group in (states, static_tensors)
            )
        sequences = ModuleSequences.of(value, self.batch_first)
        lowered: tuple[str, ...] = ()
        if is_autocast(sequences.data.device):
            lowered = self.dtypes_in_autocast(sequences.data, states, static_tensors)
            sequences = sequences._replace(data=self.in_own_dtype(sequences.data))
            states, static_tensors = (
                [self.in_own_dtype(tensor) for tensor in group] for group in (states, static_tensors)
            )
        if (states or static_tensors) and not alone and not sequences.place.tensors and not is_recorded():
            once = named_tensors("state", state) | named_tensors("statics", statics)
            check_axes("Recurrence", self.batch_first, sequences.data, once)
        if sequences.order is not None:
            states, static_tensors = (
                [tensor.index_select(0, sequences.order) for tensor in group]
                for group in (states, static_tensors)
            )
        found = None if alone or statics is not None else found
        results = self.results(sequences, states, static_tensors, graph, found)
        if lowered:
            results = in_dtypes(results, lowered)
        count = len(results) - len(leaves(memory))
        outputs, last = results[:count], results[count:]
        if sequences.back is not None:
            last = [tensor.index_select(0, sequences.back) for tensor in last]
        formed = [sequences.form(tensor) for tensor in outputs]
        if alone:
            formed, last = [tensor.squeeze(axis) for tensor in formed], [tensor.squeeze(0) for tensor in last]
        return self.in_form([*formed, *last])

    def dtypes_in_autocast(self, data: Any, states: list[Any], statics: list[Any]) -> tuple[str, ...]:
        """Returns the names of the dtypes that the step's outputs and states have under the present autocast,
        by PyTorch's own rules, for sequences `data` in the dtypes that they are given in.
        """
        device, given = data.device, (data, *states, *statics)
        dtypes = tuple(str(tensor.dtype).removeprefix("torch.") for tensor in given)
        lower = str(torch.get_autocast_dtype(device.type)).removeprefix("torch.")
        if "_name" not in self.__dict__:  # it never was on a device that the engine takes
            return ()
        return dtypes_of_step(self._name, device.type, device.index, lower, dtypes, self.training)

    def stepped(self, device: Any, dtypes: Sequence[Any]) -> list[Any]:
        """Runs two steps by PyTorch's operations on zeros, after which the dtypes of states have settled;
        returns the outputs, then the states.

        device: of all tensors. dtypes: of the sequences, the states if given, and the statics.
        """
        x, memory, statics = self._example
        count, others = len(leaves(memory)), leaves(statics)
        of_states = dtypes[1 : len(dtypes) - len(others)]
        own = {name: tensor.detach().clone() for name, tensor in self.tensors.items()}

        def zeros(like: Any, dtype: Any) -> Any:
            """Makes zeros of the shape of a tensor of the example."""
            return torch.zeros(like.shape, dtype=dtype, device=device)

        floats = [dtypes[0] if dtypes[0].is_floating_point else None] * count
        kinds = [
            given or like.dtype if like.is_floating_point() else like.dtype
            for like, given in zip(leaves(memory), of_states or floats, strict=True)
        ]
        states = rebuild(memory, [*map(zeros, leaves(memory), kinds)])
        still = rebuild(statics, [*map(zeros, others, dtypes[len(dtypes) - len(others) :])])
        further = {} if statics is None else {"statics": still}
        index, step, outputs = torch.zeros(len(x), dtype=torch.int64, device=device), self.step_on(own), []
        for _ in range(2):
            outputs, states = step(zeros(x, dtypes[0]), states, index, **further)
        return [*leaves(outputs), *leaves(arranged(states, memory))]

    def results(
        self,
        sequences: ModuleSequences,
        states: list[Any],
        statics: list[Any],
        graph: bool = False,
        found: Found | None = None,
    ) -> list[Any]:
        """Runs the step over sequences: in machine code on devices that the engine takes, by an operator of
        PyTorch if a graph is being made, as a loop of PyTorch's operations on other devices and for tensors
        of classes that replace these. Returns the outputs, then the last states, as a list of tensors.

        sequences: the data and the positions of sequences in it. states, statics: tensors with an entry for
            each sequence, in the order of the data; no states are zeros. graph: whether one is made.
        found: as of `run_call`.
        """
        if not runs_on(sequences.data.device, self.engine):
            return self.looped(sequences, states, statics)
        key = f"{self._name}:{'train' if self.training else 'eval'}"
        if graph and self.engine == "auto" and reason_in_graph(self, key, sequences.data.device):
            return self.looped(sequences, states, statics)
        tensors, how = list(self.tensors.values()), (self.checkpoint, self.engine, self.saved)
        if not graph:
            if has_own_functions([sequences.data, *states, *statics, *tensors]):
                return self.looped(sequences, states, statics)
            if found is not None:
                made = noted(self, self.runnable(tensors), sequences.data, found)
                if made is not None:
                    return made
            given = sequences.place, sequences.data, states, tensors, statics
            return run_or(
                self,
                sequences.data.device,
                "",
                lambda: self.runnable(tensors, statics)(self, *given, *how),
                lambda: self.looped(sequences, states, statics),
            )
        if not states:
            states = self.zeros(sequences)
        given = sequences.place, sequences.data, states, statics, tensors
        return in_graph(key, *given, len(leaves(self._output)), *how)

    def looped(self, sequences: ModuleSequences, states: list[Any], statics: list[Any]) -> list[Any]:
        """Runs the step as a loop of PyTorch's operations, on any device.

        states, statics: tensors with an entry for each sequence; no states are zeros. Returns the outputs,
            then the last states, as a list of tensors.
        """
        _, memory, example_statics = self._example
        lead = sequences.place.lead
        outputs, last = looped(
            self.step_on(self.tensors),
            Turns.of(sequences.place.positions(sequences.data), self.reverse),
            sequences.data.flatten(0, lead - 1),
            rebuild(memory, states or self.zeros(sequences)),
            {} if example_statics is None else {"statics": rebuild(example_statics, statics)},
        )
        lengths = sequences.data.shape[:lead]
        return [*(tensor.reshape(*lengths, *tensor.shape[1:]) for tensor in outputs), *last]

    def scanned(self, training: bool, data: Any, inputs: list[Any]) -> tuple[list[Any], list[Any]]:
        """Runs the step by PyTorch's operator `scan`, in programs that run without stepnet; returns the
        outputs [time, batch, ...] and the last states.

        training: the mode in which the step runs. data: [time, batch, ...]. inputs: the initial states, which
            are float32 in half precision too, the statics and the parameters, as lists in one.
        """
        _, memory, example_statics = self._example
        count, own = len(leaves(memory)), len(inputs) - len(self.tensors)

        def step(x: Any, memories: Any, constants: Any, *index: Any) -> tuple[list[Any], list[Any]]:
            """Calls the user's step on lists of tensors."""
            given = dict(zip(self.tensors, constants[own - count :], strict=True))
            further = (
                {}
                if example_statics is None
                else {"statics": rebuild(example_statics, constants[: own - count])}
            )
            counted = [number.expand(x.shape[0]) for number in index] or [None]
            output, following = self.step_on(given)(x, rebuild(memory, memories), *counted, **further)
            return leaves(output), leaves(arranged(following, memory))

        with self.in_mode(training):
            states = [self.in_own_dtype(tensor) for tensor in inputs[:count]]
            outputs, last = scan(step, data, states, inputs[count:], self.reverse, counted=self.has_index)
        return outputs, [made.to(given.dtype) for made, given in zip(last, inputs, strict=False)]

    def step_on(self, tensors: dict[str, Any]) -> Callable[..., tuple[Any, Any]]:
        """Returns the user's step as a function (x, memory, index, statics=) -> (output, memory) of tensors.

        tensors: the parameters and buffers that it reads, by name.
        """
        if self.cell is None:
            function, params = OfFunction(cast("Any", self.step)), tensors or None
        else:
            function, params = OfModule(self.cell, self._example[1]), tensors

        def step(x: Any, memory: Any, index: Any, **further: Any) -> tuple[Any, Any]:
            """Calls the user's step, with the index if it has such a parameter."""
            counted = {"index": index} if self.has_index else {}
            return function(x, memory, params, **counted, **further)

        return step

    @property
    def has_index(self) -> bool:
        """Presence of a parameter `index`, the number of the step, in the user's step."""
        return "index" in inspect.signature(self.step or cast("Any", self.cell).forward).parameters

    def in_own_dtype(self, tensor: Any) -> Any:
        """Casts a floating-point tensor to the dtype of the parameters, as autocast may have changed it."""
        return in_dtype_of(self.tensors.values(), tensor)

    def zeros(self, sequences: ModuleSequences) -> list[Any]:
        """Makes the initial states, zeros, for a call on sequences without a state. Floats have the dtype of
        the data; where that is integers, such as words, the dtype of the parameters.
        """
        data, memories = sequences.data, [self.in_own_dtype(tensor) for tensor in leaves(self._example[1])]
        both = data.is_floating_point()
        kinds = [data.dtype if both and own.is_floating_point() else own.dtype for own in memories]
        pairs = zip(memories, kinds, strict=True)
        return [data.new_zeros(sequences.rows, *tensor.shape[1:], dtype=kind) for tensor, kind in pairs]

    @property
    def tensors(self) -> dict[str, Any]:
        """The tensors that the step of this recurrent module reads, by name: the parameters and buffers of a
        cell, or the parameters of a function.
        """
        if self.cell is not None:
            return dict(tensors_of(self.cell))
        params: Any = self._modules["params"]  # PyTorch takes a microsecond for `self.params`
        run_pre_hooks(params)
        return dict(zip(params.keys(), tensors_named(params, params.keys()), strict=True))

    @property
    def reads(self) -> Reads:
        """The values that the step reads besides its arguments and parameters; its traces depend on them."""
        return self._latest.current(lambda: reads_of(self.step or self.cell))

    # ---- what runs it --------------------------------------------------------------------------------------

    def enter(self) -> DifferentiableLayers:
        """Returns the compiled step; the first call registers the module by name for PyTorch's graphs."""
        if "_name" not in self.__dict__:
            self._name = registered(self)
        return self.runnable(list(self.tensors.values()))

    def runnable(self, tensors: list[Any], statics: list[Any] | None = None) -> DifferentiableLayers:
        """Returns the compiled step for the module as it now is.

        tensors: its parameters and buffers. statics: the values that each sequence has once, whose features
            may have other sizes than in the example, such as another number of keys; None for the example's.

        The step is traced once for each combination of shapes and dtypes of parameters, of sizes of statics,
        and of all other values that it reads.
        """
        given = leaves(self._example[2]) if statics is None else statics
        sizes = [tuple(map(int, tensor.shape[1:])) for tensor in given]
        # int fixes sizes that are symbols of PyTorch's tracer, as machine code is for these sizes.
        shapes = tuple((tuple(map(int, tensor.shape)), tensor.dtype) for tensor in tensors)
        key = (shapes, tuple(sizes), self.reads)
        kept = self.__dict__.setdefault(RUNNABLE, OrderedDict[Any, Any]())
        if key not in kept:
            # A tracer that asks for shapes would replace the tensors of the example by ones without values,
            # and a transform of torch.func would wrap them.
            plain = functorch.temporarily_clear_interpreter_stack
            with dispatch._disable_current_modes(), plain(), parameters_with_numbers(self):
                put_latest(kept, key, self.traced(list(self.tensors.values()), sizes))
        return kept[key]

    def runnable_in(self, training: bool) -> DifferentiableLayers:
        """Returns the compiled step for training or evaluation mode, for PyTorch's graphs, each of which was
        made in one mode. The mode that the module is in does not change.
        """
        with self.in_mode(training):
            return self.enter()

    @contextmanager
    def in_mode(self, training: bool) -> Generator[None]:
        """Returns a context in which the module is in training or in evaluation mode; all its modules have
        their own modes again after it.
        """
        if training == self.training:
            yield
            return
        before = [(module, module.training) for module in self.modules()]
        try:
            self.train(training)
            yield
        finally:
            for module, mode in before:
                module.training = mode

    def rnn(self, tensors: list[Any], sizes: list[tuple[int, ...]] | None = None) -> RNN:
        """Makes an `RNN` of the step, which computes in the dtype of the parameters, and has copies of them.

        tensors: the parameters and buffers; raises `InputError` for a floating dtype that is not in `DTYPES`.
        sizes: the features of the statics, values that each sequence has once; None for the example's.
        """
        if (why := dtypes_refused(tensor for tensor in tensors if tensor.is_floating_point())) is not None:
            raise InputError(f"a Recurrence cannot run: {why}; make them float32 with .float()")
        x, memory, statics = transform(partial(in_dtype_of, tensors), self._example)
        if sizes is not None:
            pairs = zip(leaves(statics), sizes, strict=True)
            statics = rebuild(statics, [tensor.new_zeros(1, *shape) for tensor, shape in pairs])
        example = (x, memory) if self.step is None else (x, memory, dict(self.params) or None)
        step = self.cell if self.step is None else self.step
        return trace(step, example, statics=statics, reverse=self.reverse)

    def traced(self, tensors: list[Any], sizes: list[tuple[int, ...]]) -> DifferentiableLayers:
        """Traces and compiles the step with these parameters and buffers, for statics of these features."""
        return DifferentiableLayers.of(self.rnn(tensors, sizes))

    def prepare(self) -> None:
        """Traces the step now, so that later calls need not, if its parameters are on a device that the
        engine takes and its floats are of a dtype in `DTYPES`; other calls run as a loop or raise an error.
        """
        tensors = self.tensors.values()
        if all(runs_on(tensor.device, self.engine) for tensor in tensors) and all(
            tensor.dtype in DTYPES for tensor in tensors if tensor.is_floating_point()
        ):
            self.enter()

    # ---- what changes what runs it -------------------------------------------------------------------------

    def train(self, mode: bool = True) -> Any:
        """Sets the mode as `torch.nn.Module.train` does, and traces the step anew; returns the module."""
        super().train(mode)  # type: ignore[misc]
        self.prepare()
        return self

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        """Moves or casts the tensors as `torch.nn.Module._apply` does, and traces the step anew. fn: the
        function that moves or casts a tensor. recurse: whether inner modules take part.
        """
        super()._apply(fn, recurse)  # type: ignore[misc]
        self.prepare()
        return self

    def extra_repr(self) -> str:
        """Describes the order of axes for `repr`, and the engine if that was chosen."""
        return f"batch_first={self.batch_first}{text_of_engine(self.engine)}{text_of_refusal(self)}"

    def __getstate__(self) -> dict[str, Any]:
        """Returns the state of this module to copy or pickle, without the compiled program, which a copy
        compiles again.
        """
        return {
            name: value
            for name, value in self.__dict__.items()
            if name not in (BOUND, RUNNABLE, REFUSED, LOWERED, KNOWN, "_name")
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restores a copy or a pickled module; it gets a new name in graphs."""
        super().__setstate__(state)  # type: ignore[misc]
        self.prepare()


@constant_in_graphs
def refuse_unknown(*names: str) -> None:
    """Raises `ArgumentError` for arguments that a call lacks, in traces of torch.compile too."""
    raise unknown_argument("a call of a Recurrence", Recurrence.forward, names, MEANT)


@constant_in_graphs
def dtypes_of_step(
    name: str, device: str, number: int | None, lower: str, dtypes: tuple[str, ...], training: bool
) -> tuple[str, ...]:
    """Returns the names of the dtypes that the outputs and states of a `Recurrence` have under autocast.

    name: of the module, by which graphs find it. device, number: the type and the number of the device.
    lower: the dtype of autocast. dtypes: the dtypes of the sequences, the states if given, and the statics.
    """
    module: Recurrence = MODULES[name]
    known: dict[Any, tuple[str, ...]] = module.__dict__.setdefault(LOWERED, {})
    key = device, lower, dtypes, training
    if key not in known:
        where = torch.device(device, number) if number is not None else torch.device(device)
        plain = functorch.temporarily_clear_interpreter_stack
        with (
            dispatch._disable_current_modes(),
            plain(),
            torch.no_grad(),
            torch.random.fork_rng(devices=[] if device == HOST else [where]),
            torch.autocast(device, getattr(torch, lower)),
            module.in_mode(training),
        ):
            made = module.stepped(where, [getattr(torch, each) for each in dtypes])
        known[key] = tuple(str(tensor.dtype).removeprefix("torch.") for tensor in made)
    return known[key]


def in_dtype_of(parameters: Iterable[Any], tensor: Any) -> Any:
    """Casts a floating-point tensor to the dtype of the first floating-point parameter; other tensors, and
    all where there is no such parameter, are returned as they are.
    """
    floats = [each.dtype for each in parameters if each.dtype.is_floating_point]
    return tensor.to(floats[0]) if floats and tensor.is_floating_point() else tensor


def tensors_of_argument(value: Any, example: Any, what: str) -> list[Any]:
    """Returns the tensors of `value`, a state or statics (values for all steps), as a list.

    Raises `InputError` for another structure than that of `example`, the argument in the module's example,
    and for what is no tensor.
    what: the argument's name, for messages.
    """
    tensors = leaves_as(value, example)
    if tensors is not None and all(isinstance(tensor, torch.Tensor) for tensor in tensors):
        return tensors
    if tensors is None or any(skeleton(tensor) != "array" for tensor in tensors):
        raise InputError(f"{what}= is {skeleton(value)}; in the example it is {skeleton(example)}")
    wrong = ((name, leaf) for name, leaf in named_leaves(value) if not isinstance(leaf, torch.Tensor))
    name, leaf = next(wrong)
    raise InputError(f"{f'{what} {name}'.strip()} is {described(leaf)}; it should be a tensor")


def check_example(example: Any) -> None:
    """Raises `InputError` unless an example's input is a tensor, and its parameters a dict of tensors.
    example: (x, state), or (x, memory, params) for a function.
    """
    if not isinstance(example[0], torch.Tensor):
        raise InputError(f"the input of a Recurrence is one tensor, not {described(example[0])}")
    params: Any = example[2] if len(example) == 3 else None
    if params is not None and not (
        isinstance(params, dict)
        and all(isinstance(tensor, torch.Tensor) for tensor in cast("dict[str, Any]", params).values())
    ):
        raise InputError(f"the parameters of a Recurrence are a dict of tensors, not {described(params)}")
