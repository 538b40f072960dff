"""`vjp`: runs layers and models, and computes gradients from the cotangents of their results.

The values that are saved between the two passes depend on how the gradient runs (`gradients/runs.py`).
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Unpack

import numpy as np

from stepnet.compiler.grad.stored_values import saving
from stepnet.compiler.targets import Order
from stepnet.compiler.values.arguments import checked_integer, flag
from stepnet.errors import IndexOutsideError, InputError
from stepnet.explain.gradients import explain_gradient
from stepnet.model.control import Controls, UncheckedCall, check_controls
from stepnet.model.executables import Executables, Form
from stepnet.model.gradients.arguments import (
    CallArguments,
    Gradients,
    wanted_kinds,
    wanted_places,
)
from stepnet.model.gradients.backward import Backward, GradientLayout
from stepnet.model.gradients.explained import GradientExplanation, gradient_explanation
from stepnet.model.gradients.pieces import Checkpoint, checked_checkpoint, checked_saved
from stepnet.model.gradients.prepared_gradients import GradientExecutable, form_of
from stepnet.model.gradients.runs import GradientRun, Halved
from stepnet.model.gradients.strategy import gradient_run
from stepnet.model.model import Model, differentiable, gradient_kinds
from stepnet.model.program import Asked, Program

Array = np.ndarray


def vjp(model: Model, *, per_sequence: bool = False, saved: str | None = None) -> "Vjp":
    """Returns a function that runs a model and returns its results and a function from cotangents to
    gradients.

    `results, backward = vjp(model)(sequences)`, and `gradients = backward(cotangents of the results)`: the
    vector-Jacobian product of reverse-mode differentiation.

    Args:
        model: An `RNN`, a `Stack`, a `Bidirectional` or a `Graph`.
        per_sequence: Whether the gradients of the parameters are those of each sequence, with an axis of
            sequences first, instead of their sum over the batch.
        saved: The dtype in which float32 values that only the backward pass reads are stored: None for their
            own, or "bfloat16", which takes half the memory.

    Raises:
        InputError: For a value that is not a model, for layers with `until`, and for another `saved`.
        RefusedError: When it is run, for a recurrence in int8, and with `per_sequence` for models with
            sequences inside a step, and for parameters that are read at indices.

    >>> import stepnet as sn
    >>> rnn = sn.RNN(lambda x, h, W: (h + x * W, h + x * W), np.array([2.0]), memory=1)
    >>> run = sn.vjp(rnn)
    >>> (outputs, final), backward = run(np.array([[[1.0], [10.0]]]))
    >>> final
    array([[22.]])
    >>> gradients = backward(None, np.ones((1, 1)))
    >>> gradients.params, gradients.inputs.tolist(), gradients.initial
    (array([11.]), [[[2.0], [2.0]]], array([[1.]]))

    The gradient of the parameters for each of two sequences:

    >>> _, backward = sn.vjp(rnn, per_sequence=True)(np.array([[[1.0], [10.0]], [[2.0], [3.0]]]))
    >>> backward(None, np.ones((2, 1))).params
    array([[11.],
           [ 5.]])

    A graph returns outputs alone, and `backward` takes the cotangents of these:

    >>> graph = sn.Graph(lambda x, W: sn.reduce(rnn(x)[0], "mean") * W, np.array([3.0]))
    >>> outputs, backward = sn.vjp(graph)(np.array([[[1.0], [10.0]]]))
    >>> outputs
    array([[36.]])
    >>> gradients = backward(np.ones((1, 1)))
    >>> gradients.params, gradients.inputs.tolist()
    (array([12.]), [[[6.0], [3.0]]])
    """
    return Vjp(differentiable(model), flag(per_sequence, "per_sequence"), checked_saved(saved))


class Vjp:
    """A function that runs a model and returns its results and a `Backward` for gradients; `vjp` makes it.

    The second call of a form is prepared. The compiled gradients are kept with the model's programs.
    """

    def __init__(self, model: Model, per_sequence: bool = False, saved: str | None = None) -> None:
        """Stores a model that has gradients, with an empty cache of prepared calls.

        per_sequence: whether each sequence has gradients of the parameters of its own, instead of one sum
            over all.
        saved: the dtype in which values that only the backward pass reads are stored; None for their own.
        """
        self.per_sequence, self.saved = per_sequence, saved
        self.model, self.calls = model, GradientCalls()
        self.check, self.ends_early = model.change_check, model.ends_early

    def __call__(
        self,
        sequences: Any,
        *,
        params: Any = None,
        initial: Any = None,
        statics: Any = None,
        lengths: Any = None,
        last_only: bool = False,
        wrt: Any = None,
        checkpoint: Checkpoint = None,
        engine: Asked = "auto",
        **control: Unpack[Controls],
    ) -> tuple[Any, Callable[..., Gradients]]:
        """Runs the model; returns its results, and a function from their cotangents to `Gradients`.

        The results are (outputs, final memories); of a graph, the outputs alone. The arguments are not
        copied: the backward pass reads them again, so they must not change before it.

        params: parameters in place of the model's own, in the same structure.
        wrt: the arguments to differentiate: some of "params", "inputs", "initial" and "statics"; all by
            default. Of a graph, "initial" only where the call gives it.
        checkpoint: the values that are saved for the gradients. None saves all values that the backward pass
            reads, of every step. A number k saves the memories before every k-th step, and recomputes the
            steps in between. "sqrt" is the square root of the largest length, about the k of least memory.

        The other arguments are as in a call of the model.

        >>> import stepnet as sn
        >>> rnn = sn.RNN(lambda x, h, W: (h + x * W, h + x * W), np.array([2.0]), memory=1)
        >>> _, backward = sn.vjp(rnn)(np.ones((1, 100, 1)), checkpoint="sqrt")
        >>> backward(None, np.ones((1, 1))).params
        array([100.])
        """
        form, others = None, (statics, lengths, checkpoint)
        if not self.ends_early and all(value is None for value in others):
            if self.check is not None:
                self.check()
            begins = initial is not None and not self.model.gives_final
            form = form_of(sequences, wrt, last_only, engine, control, params is not None, begins)
            if (
                form is not None
                and (made := self.calls.forward(form, sequences, initial, params)) is not None
            ):
                return made
        check_controls("vjp", Vjp.__call__, control)
        asked, kinds = (
            self.model.gradient_order(engine),
            wanted_kinds(wrt, gradient_kinds(self.model, initial)),
        )
        checkpoint, last_only = checked_checkpoint(checkpoint), flag(last_only, "last_only")
        arguments = self.model.gradient_call(
            UncheckedCall(sequences, params, initial, statics, lengths, last_only, control, asked)
        )
        places = arguments.wanted(kinds)
        run = self.run_of(arguments.reading.program, places, checkpoint, asked)
        if form is not None and isinstance(run, Halved) and not arguments.reading.program.has_derived:
            self.calls.prepare(
                form, arguments, GradientLayout.of(arguments, kinds, places, run, asked), params is not None
            )
            if (done := self.calls.forward(form, sequences, initial, params)) is not None:
                return done
        with arguments.located():
            made = run.forward(arguments.arrays, arguments.call, asked)
        own, saved = made[: len(arguments.net.results)], [made[place] for place in run.saved]
        finish = Backward(arguments, kinds, places, run, asked, own, saved)
        return finish.results, finish

    def run_of(
        self, program: Program, wanted: Sequence[int], checkpoint: Checkpoint, engine: Order
    ) -> GradientRun:
        """Returns the programs of the gradient of a model's program, made at first use and kept with it.

        Raises `InputError` for a checkpoint if each sequence has gradients of its own.

        wanted: the positions of the inputs to differentiate.
        checkpoint: the checked argument of a call. engine: the engines in order of preference.
        """
        net, kept = saving(program.net, self.saved), program.gradient_runs
        return gradient_run(kept, self.saved, net, wanted, checkpoint, engine, self.per_sequence)

    def explanation(
        self,
        wrt: Any = None,
        *,
        checkpoint: Checkpoint = None,
        rows: int | None = None,
        steps: int | None = None,
        engine: Asked = "auto",
    ) -> GradientExplanation:
        """Returns the data that `explain` prints: saved values, costs, memory and the plans (which operation
        runs when) of both passes.

        wrt: the arguments to differentiate, such as "params"; None for all.
        checkpoint: the steps between saved memories, or "sqrt"; None to save all values.
        rows, steps: the numbers of sequences and of their steps in a batch whose costs are added; both None
            for no batch. Raises `InputError` if only one is given.
        engine: an engine, or several in order of preference.
        """
        asked, kinds = self.model.gradient_order(engine), wanted_kinds(wrt, self.model.kinds)
        checkpoint = checked_checkpoint(checkpoint)
        if (rows is None) != (steps is None):
            raise InputError("rows and steps go together: give both, or none")
        if rows is not None and steps is not None:
            rows = checked_integer(rows, "rows is how many there are", 0)
            steps = checked_integer(steps, "steps is how many there are of each", 0)
        program, places = self.model.gradient_program()
        wanted = wanted_places(program.net, places, kinds)
        run = self.run_of(program, wanted, checkpoint, asked)
        return gradient_explanation(run, kinds, checkpoint, asked, rows, steps)

    def explain(
        self,
        wrt: Any = None,
        *,
        checkpoint: Checkpoint = None,
        rows: int | None = None,
        steps: int | None = None,
        engine: Asked = "auto",
    ) -> str:
        """Returns the saved values, the costs and memory of the forward and the backward pass, and their
        plans (which operation runs when), as text.

        wrt: the arguments to differentiate, such as "params"; None for all.
        checkpoint: the steps between saved memories, or "sqrt"; None to save all values.
        rows, steps: the numbers of sequences and of their steps in a batch whose flops and memory are added;
            give both or neither.
        engine: an engine, or several in order of preference.

        Raises `InputError` before the inputs are known.

        >>> import stepnet as sn
        >>> rnn = sn.cells.rnn("gru", sn.cells.CELLS["gru"].parameters(inputs=3, hidden=4))
        >>> _ = rnn(np.ones((1, 1, 3), "float32"))
        >>> print(sn.vjp(rnn).explain(checkpoint="sqrt", rows=16, steps=100))
        gradients of params, inputs, initial, statics
          engine      llvm
          checkpoint  memories ahead of every sqrt(steps) steps
        ...
        for 16 sequences of 100 steps
          forward   627.2 kflop
          backward  1.3 Mflop
          memory    2.3 kB between them, ... at most
        ...
        """
        explanation = self.explanation(wrt, checkpoint=checkpoint, rows=rows, steps=steps, engine=engine)
        return explain_gradient(explanation, self.model.gradient_order(engine))


class GradientCalls(Executables[GradientExecutable]):
    """The prepared gradients of a model, by form (shapes, dtypes and options of the arguments)."""

    def forward(
        self, form: Form, sequences: Any, initial: Any, params: Any
    ) -> tuple[Any, Callable[..., Gradients]] | None:
        """Runs a forward half that was prepared; returns the results of the call, and its backward pass.

        Returns None if none with this key is free, if an argument needs a check or a conversion, and for an
        integer outside of a parameter, which the call that is not prepared names.

        form: the key of the call.
        sequences, initial, params: the arguments of the call; None for initial memories of zeros, and for the
            parameters of the model.
        """
        if (taken := self.take(form)) is None:
            return None
        executable, idle = taken
        try:
            run = executable.forward(sequences, initial, params)
        except IndexOutsideError:
            return None
        finally:
            idle.append(executable)
        if run is None:
            return None
        both, arrays, made = run
        layout = executable.layout
        backward = partial(self.backward, form, layout, sequences, arrays, made)
        return both if layout.arguments.gives_final else both[0], backward

    def backward(
        self,
        form: Form,
        layout: GradientLayout,
        sequences: Any,
        arrays: list[Any],
        made: list[Array],
        outputs: Any = None,
        final: Any = None,
    ) -> Gradients:
        """Computes the gradients of one call that ran on its prepared forward half.

        It runs the backward pass prepared for the call's form (key), or an unprepared one, which allocates
        arrays, if the prepared one is in use or was evicted. Raises `InputError` for cotangents of another
        shape.

        form, layout: the key of the call, and the data that all calls with this key share.
        sequences, arrays: the sequences of the call, and the arrays of the inputs of its net.
        made: the results of its forward half.
        outputs, final: the cotangents, in the structures of the outputs and of the final memories. None
            stands for zeros, as a whole or at a leaf. Cotangents of integers are not read.
        """
        if (taken := self.take(form)) is not None:
            executable, idle = taken
            try:
                gradients = executable.backward(sequences, arrays, made, outputs, final)
            finally:
                idle.append(executable)
            if gradients is not None:
                return gradients
        return layout.backward(sequences, arrays, made)(outputs, final)

    def prepare(self, form: Form, arguments: CallArguments, layout: GradientLayout, changes: bool) -> None:
        """Counts a call by its form (cache key); once enough came, prepares later calls of that form.

        arguments: the checked arguments of the call.
        layout: the data that all calls of the form share.
        changes: whether these calls pass `params`, which may differ each time; else the model's are used.
        """
        if self.is_due(form) and (made := GradientExecutable.of(arguments, layout, changes)) is not None:
            self.keep(form, made, made.bytes)
