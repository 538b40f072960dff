"""`IntegerGraph`: a graph in integers alone, as `quantize` makes it with `activations=`.

    samples --one step of the model--> ranges of its values --> FrameProgram --over_sequences--> outputs

It means exactly what its frame program computes, and a device computes the same integers. Everything that
would compute something else, such as plans of floats, gradients and other engines, is refused by name.
"""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from stepnet.compiler.targets import AUTO, REFERENCE, Order, checked_engine
from stepnet.compiler.targets.base import Call, CalledKernel, Results
from stepnet.compiler.trace.lines import refuse
from stepnet.compiler.trace.traced import is_traced
from stepnet.compiler.values.fork_guard import IMPORTS
from stepnet.compiler.values.once import computed_once
from stepnet.compiler.values.records import dataclass
from stepnet.errors import InputError
from stepnet.model.control import UncheckedCall
from stepnet.model.forms import FormedCall
from stepnet.model.graph.graph import Graph, check_per_sequence, given_stepwise
from stepnet.model.graph.programs import has_steps, with_ends
from stepnet.model.graph.quantized import QuantizedGraph
from stepnet.model.graph.report import Quantization, Saturation
from stepnet.model.program import Asked, Program

if TYPE_CHECKING:
    from stepnet.compiler.plan.load import CallSize
    from stepnet.compiler.targets.calibration import FrameSamples
    from stepnet.compiler.targets.frame.program import FrameProgram
    from stepnet.compiler.targets.frame.step import ModelStep
    from stepnet.explain.document import TitledSection

INSTEAD = "use the model that it was made of, or quantize that without activations"


def refused(what: str) -> NoReturn:
    """Raises `InputError` for a request that a model in integers cannot serve."""
    raise InputError(f"a model in integers alone {what}: {INSTEAD}")


@dataclass(frozen=True)
class IntegerKernel(CalledKernel):
    """A frame program in integers as the kernel of a graph's calls. running: the graph's program for a call,
    which says how outputs are ordered and their dtypes.
    """

    program: "FrameProgram"
    running: Program

    def __call__(self, call: Call) -> Results:
        """Runs the frames of a call; returns its outputs as numbers."""
        with IMPORTS:  # late: few processes have models in integers
            from stepnet.compiler.targets.frame.numpy_run import FrameRun
            from stepnet.compiler.targets.frame.over_sequences import over_sequences

        run = FrameRun(self.program, len(call.positions.lengths))
        made = over_sequences(run, call.positions, call.sequences, call.statics)
        results = Results([], [])
        for (steps, ends), number, level in zip(
            made, self.running.net.results, self.running.levels, strict=True
        ):
            type_, array = self.running.net.type_of(number), steps if level else ends
            kind = results.outputs if level else results.final
            kind.append(np.ascontiguousarray(array.reshape(-1, *type_.shape), type_.dtype))
        return results


class IntegerGraph(QuantizedGraph):
    """A graph in integers alone: a call gives the integers of a device, as the numbers that they stand for.

    Calls take `engine="auto"` or "interpret", which are the same here. It has no stream, no gradient and no
    further engines. `stepnet.build` makes it a program for a device, and `save` writes it to a file.

    Attributes:
        frame_step: One step of the model, with the largest magnitudes of its values in the samples.
        frame: What one frame computes, as loops over arrays.
    """

    frame_step: "ModelStep"

    @classmethod
    def calibrated(cls, graph: QuantizedGraph, samples: "FrameSamples") -> "IntegerGraph":
        """Returns a quantized graph in integers whose scales come from samples, for the inputs that it was
        traced with last.

        Raises `InputError` for a model without a stream, and `RefusedError` for an operation without a form
        in integers, with its line.
        """
        with IMPORTS:  # late: few processes have models in integers
            from stepnet.compiler.targets.frame.ranges import calibrated
            from stepnet.model.specification import specification_of
            from stepnet.model.streams.frames import EXACT, step_of_call

        program = graph.program
        call = specification_of(program, program.schedule_for(AUTO))
        return cls.with_step(graph, calibrated(step_of_call(call, passes=EXACT), samples))

    @classmethod
    def with_step(cls, graph: QuantizedGraph, step: "ModelStep") -> "IntegerGraph":
        """Returns a quantized graph as the calls of a calibrated step; raises as `calibrated` does."""
        made, traced = object.__new__(cls), graph.program.traced
        vars(made).update(
            vars(graph) | {"inputs": traced.inputs, "statics": traced.statics, "frame_step": step}
        )
        assert made.frame.loops  # lowered here, which refuses operations without a form in integers
        return made

    @computed_once
    def frame(self) -> "FrameProgram":
        """The frame program of the step, in integers."""
        with IMPORTS:  # late: it needs llvmlite
            from stepnet.compiler.targets.frame import lowered_step

        return lowered_step(self.frame_step)

    def unprepared(self, formed: FormedCall | None, call: UncheckedCall) -> Any:
        """Runs a call; returns the outputs of the model, in its structure. formed: not used."""
        if is_traced(call.sequences):
            return self.in_model(call.sequences, call.statics)
        self.engine_order(call.engine)
        if names := given_stepwise(call):
            refused(f"begins each sequence anew, so {names[0]}= is not for its calls")
        time_major = call.control.get("time_major", False)
        reading = self.read(call.sequences, None, call.statics, call.lengths, time_major=time_major)
        program = reading.program
        if 0 in program.levels:
            check_per_sequence(reading, None)
        outputs, _ = reading.answer(IntegerKernel(self.frame, program))
        if call.last_only:
            outputs = with_ends(outputs, has_steps(program), program.axes, reading.batch)
        return outputs

    def engine_order(self, asked: Asked) -> Order:
        """Checks the argument `engine`; raises `InputError` for others than "auto" and "interpret"."""
        if (order := checked_engine(asked)) not in ("auto", REFERENCE):
            refused(f"has one meaning, which engine='auto' and {REFERENCE!r} compute, and not {order!r}")
        return REFERENCE

    def saturation(self, sequences: Any, statics: Any = None, lengths: Any = None) -> tuple[Saturation, ...]:
        """Returns the values that saturate in a call: inputs, memories, outputs and values between them. It
        is empty if nothing does.

        Args:
            sequences: The inputs, as of a call.
            statics: The values that each sequence has once, as of a call.
            lengths: The number of steps of each sequence of a padded array.

        >>> import numpy as np
        >>> import stepnet as sn
        >>> gru = sn.cells.rnn("gru", sn.cells.CELLS["gru"].parameters(inputs=8, hidden=16))
        >>> x = np.random.default_rng(0).normal(size=(4, 20, 8)).astype("float32")
        >>> small = sn.quantize(gru, [x], "int8", activations="int8")
        >>> small.saturation(x)
        ()
        >>> print(small.saturation(np.where(x > 2, 1e30, x))[0])
        x: 10 of 640 numbers saturate (1.6%)
        """
        with IMPORTS:  # late: calls do not need it
            from stepnet.compiler.targets.frame.over_sequences import over_sequences
            from stepnet.compiler.targets.frame.saturation import SaturatingRun, saturated_inputs

        call = self.read(sequences, None, statics, lengths).call
        run = SaturatingRun(self.frame, len(call.positions.lengths))
        over_sequences(run, call.positions, call.sequences, call.statics)
        found = dict(saturated_inputs(self.frame.of("input"), [*call.sequences, *call.statics]))
        found |= {name: (count, run.numbers[name]) for name, count in run.saturated.items()}
        return tuple(Saturation(name, *counts) for name, counts in found.items() if counts[0])

    # ---- what would compute with floats

    def in_model(self, sequences: Any, statics: Any) -> Any:
        """Raises `StepError`: inside another model it would compute with floats."""
        raise refuse(f"a model in integers alone is no part of a model: {INSTEAD}")

    def step_for(self, engine: Order) -> NoReturn:
        """Raises `InputError`: a stream would compute with floats."""
        refused("has no stream in Python")

    def stream_chunks(self, *arguments: Any, **options: Any) -> NoReturn:
        """Raises `InputError`: a stream would compute with floats."""
        refused("has no stream in Python")

    def on_engine(self, order: Order) -> NoReturn:
        """Raises `InputError`: other engines would compute with floats."""
        refused("does not move to a device of Python; stepnet.build is for others")

    def with_params(self, params: Any) -> NoReturn:
        """Raises `InputError`: the scales were calibrated for the parameters that it has."""
        refused("has the scales of its parameters, and takes no others")

    @property
    def gradient_refusal(self) -> str:
        """The reason why the model has no gradient."""
        return f"a model in integers alone has no gradient: {INSTEAD}"

    def gradient_reading(self, call: UncheckedCall) -> NoReturn:
        """Raises `InputError`: there is no gradient, and calls on other devices would compute with floats."""
        raise InputError(self.gradient_refusal)

    # ---- what describes it

    def digest(self, inputs: Any, last_only: bool, engine: Order) -> str:
        """Returns a digest that identifies the function that a call computes, ranges included."""
        with IMPORTS:  # late: calls do not need it
            from stepnet.compiler.net.digest import digest

        return digest(super().digest(inputs, last_only, engine), str(self.frame_step.ranges))

    def explained(self, order: Order, size: "CallSize | None") -> "list[TitledSection]":
        """Returns the sections of the text of `explain`: arrays and loops. order, size: not used."""
        with IMPORTS:  # late: calls do not need it
            from stepnet.explain.integers import frame_sections

        return frame_sections(self.frame, self.frame_step)

    def __str__(self) -> str:
        """Returns the model as text: its origin, and its arrays and loops in integers."""
        return f"{self.name}, in integers alone\n{self.explain()}"

    def draw(self, path: str | Path | None = None, engine: Asked = "auto", *, force: bool = False) -> str:
        """Returns the arrays and loops of a frame as text. path: None. engine, force: not used. Raises
        `InputError` for a path: a picture would show the model in floats.
        """
        if path is not None:
            refused("is drawn as text alone")
        return self.explain()

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles the arguments of the constructor, the precisions, the report and the step."""
        made = partial(Graph, inputs=self.inputs, statics=self.statics)
        return remade, (made, self.model, self.params, self.report, self.engines, self.frame_step)


def remade(
    made: Any, model: Any, params: Any, report: Quantization, engines: tuple[str, ...], step: "ModelStep"
) -> IntegerGraph:
    """Rebuilds an unpickled graph. made: makes it from model and parameters; others are its attributes."""
    return IntegerGraph.with_step(QuantizedGraph.of(made(model, params), (), report, engines), step)
