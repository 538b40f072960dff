"""`vjp`: runs layers and models, and computes gradients from the cotangents of their results.

The values that are saved between the two passes depend on how the gradient runs (`gradient_runs.py`).
"""

from dataclasses import dataclass
from typing import Any, Unpack

import numpy as np

from stepnet.compiler.targets import Order, gradient_order
from stepnet.compiler.values.arguments import flag, whole
from stepnet.compiler.values.structure import leaves_as, named_leaves, rebuild, skeleton
from stepnet.errors import InputError
from stepnet.explain.gradients import explain_gradient
from stepnet.model.batch import checked_array
from stepnet.model.control import Controls
from stepnet.model.gradient_explain import GradientExplanation, gradient_explanation
from stepnet.model.gradient_runs import GradientRun
from stepnet.model.gradient_strategy import gradient_run
from stepnet.model.gradients import (
    CallArguments,
    GradientPrograms,
    Gradients,
    UncheckedCall,
    wanted_kinds,
    wanted_places,
)
from stepnet.model.model import Model, differentiable
from stepnet.model.pieces import Checkpoint, checked_checkpoint
from stepnet.model.program import Asked
from stepnet.ragged import Ragged

Array = np.ndarray


def vjp(model: Model) -> "Vjp":
    """Returns a function that runs a model and returns its results and a function from cotangents to
    gradients.

    `results, backward = vjp(model)(sequences)`, and `gradients = backward(cotangents of the results)`: the
    vector-Jacobian product of reverse-mode differentiation.

    Args:
        model: An `RNN`, a `Stack`, a `Bidirectional` or a `Graph`.

    Raises:
        InputError: For a value that is not a model, and for layers with `until`.
        RefusedError: For a recurrence in int8, when it is run.

    >>> import stepnet as sn
    >>> rnn = sn.RNN(lambda x, h, W: (h + x * W, h + x * W), np.array([2.0]), memory=1)
    >>> run = sn.vjp(rnn)
    >>> (outputs, final), backward = run(np.array([[[1.0], [10.0]]]))
    >>> final
    array([[22.]])
    >>> gradients = backward(None, np.ones((1, 1)))
    >>> gradients.params, gradients.inputs.tolist(), gradients.initial
    (array([11.]), [[[2.0], [2.0]]], array([[1.]]))

    A graph gives its outputs alone, and so are the cotangents:

    >>> graph = sn.Graph(lambda x, W: sn.reduce(rnn(x)[0], "mean") * W, np.array([3.0]))
    >>> outputs, backward = sn.vjp(graph)(np.array([[[1.0], [10.0]]]))
    >>> outputs
    array([[36.]])
    >>> gradients = backward(np.ones((1, 1)))
    >>> gradients.params, gradients.inputs.tolist()
    (array([12.]), [[[6.0], [3.0]]])
    """
    return Vjp(differentiable(model))


class Vjp:
    """A function that runs a model and prepares its gradients, whose programs it caches; `vjp` makes it."""

    def __init__(self, model: Model) -> None:
        """Prepares gradients of a model that has some."""
        self.model, self.programs = model, GradientPrograms()

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
    ) -> "tuple[Any, Backward]":
        """Runs the model; returns its results, and a function from their cotangents to `Gradients`.

        The results are (outputs, final memories); of a graph, the outputs alone. The arguments are not
        copied: the backward pass reads them again, so they must not change before it.

        params: parameters in place of the model's own, in the same structure.
        wrt: the arguments to differentiate: some of "params", "inputs", "initial" and "statics"; all by
            default. A graph has no "initial".
        checkpoint: the values that are saved for the gradients. None saves all values that the backward pass
            reads, of every step. A number k saves the memories before every k-th step, and recomputes the
            steps in between. "sqrt" is the square root of the largest length, about the k of least memory.

        The other arguments are those of a call of the model.

        >>> import stepnet as sn
        >>> rnn = sn.RNN(lambda x, h, W: (h + x * W, h + x * W), np.array([2.0]), memory=1)
        >>> _, backward = sn.vjp(rnn)(np.ones((1, 100, 1)), checkpoint="sqrt")
        >>> backward(None, np.ones((1, 1))).params
        array([100.])
        """
        asked, kinds = gradient_order(engine), wanted_kinds(wrt, self.model.kinds)
        checkpoint, last_only = checked_checkpoint(checkpoint), flag(last_only, "last_only")
        arguments = self.model.gradient_call(
            UncheckedCall(sequences, params, initial, statics, lengths, last_only, control, asked)
        )
        places = arguments.wanted(kinds)
        run = gradient_run(self.programs, arguments.reading.program, arguments.net, places, checkpoint)
        made = run.forward(arguments.arrays, arguments.call, asked)
        own, saved = made[: len(arguments.net.results)], [made[place] for place in run.saved]
        finish = Backward(arguments, kinds, places, run, asked, own, saved)
        return finish.results, finish

    def explanation(
        self,
        wrt: Any = None,
        *,
        checkpoint: Checkpoint = None,
        rows: int | None = None,
        steps: int | None = None,
        engine: Asked = "auto",
    ) -> GradientExplanation:
        """Returns the data that `explain` prints: saved values, costs, memory and the plans of both passes.

        wrt, checkpoint, engine: the arguments to differentiate, the values that are saved, and the engines,
            as for a call.
        rows, steps: the numbers of sequences and of their steps in a batch whose costs are added; both None
            for no batch.
        """
        asked, kinds = gradient_order(engine), wanted_kinds(wrt, self.model.kinds)
        checkpoint = checked_checkpoint(checkpoint)
        if (rows is None) != (steps is None):
            raise InputError("rows and steps go together: give both, or none")
        if rows is not None and steps is not None:
            rows = whole(rows, "rows is how many there are", 0)
            steps = whole(steps, "steps is how many there are of each", 0)
        program, places = self.model.gradient_program()
        wanted = wanted_places(program.net, places, kinds)
        run = gradient_run(self.programs, program, program.net, wanted, checkpoint)
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
        plans, as text.

        wrt, checkpoint, engine: as for a call.
        rows, steps: the numbers of sequences and of their steps in a batch whose flops and memory are added;
            give both or neither.

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
        return explain_gradient(explanation, gradient_order(engine))


@dataclass(frozen=True)
class Backward:
    """A function from the cotangents of one run's results to its gradients; it can be called several times.

    arguments: the checked arguments of the run.
    kinds: the arguments to differentiate, such as "params".
    places: the positions of these among the inputs of the net.
    run: the forward and backward programs, which is in halves, pieces or blocks of steps.
    engine: the engines in order of preference.
    made: the results of the net.
    saved: the values that were saved for the backward pass.
    """

    arguments: CallArguments
    kinds: tuple[str, ...]
    places: list[int]
    run: GradientRun
    engine: Order
    made: list[Array]
    saved: list[Array]

    @property
    def results(self) -> Any:
        """The results of the run: the outputs and the final memories, or for a graph the outputs alone."""
        return self.both if self.arguments.gives_final else self.both[0]

    @property
    def both(self) -> tuple[Any, Any]:
        """The outputs and the final memories of the run, in the structures of the caller."""
        program, levels = self.arguments.reading.program, self.arguments.reading.program.levels
        outputs = list(map(self.arguments.batch.like_input, self.made, levels))
        return rebuild(program.output, outputs), program.final(self.made[len(levels) :])

    def __call__(self, outputs: Any = None, final: Any = None) -> Gradients:
        """Computes the gradients for cotangents of the outputs and final memories, in their structures.

        None stands for zeros, for all cotangents or for a single one; those of integers are not used. Raises
        `InputError` for cotangents of another shape.
        """
        if final is not None and not self.arguments.gives_final:
            raise InputError("a graph gives no last memories: only its outputs have cotangents")
        pairs = zip(("outputs", "final"), (outputs, final), self.both, strict=True)
        flat_cotangents = [
            cotangent for what, value, like in pairs for cotangent in cotangents(what, value, like)
        ]
        types = [self.arguments.net.type_of(number) for number in self.arguments.net.results]
        arrays = [
            (np.zeros_like(flat) if cotangent is None else cotangent.reshape(flat.shape)).astype(
                type_.computed.dtype
            )
            for cotangent, flat, type_ in zip(flat_cotangents, self.made, types, strict=True)
            if type_.is_float
        ]
        results = self.run.backward(
            self.arguments.arrays, arrays, self.saved, self.arguments.call, self.engine
        )
        return self.arguments.gradients(self.kinds, self.places, results)


def cotangents(what: str, value: Any, like: Any) -> list[Array | None]:
    """Checks cotangents against the results they belong to; returns arrays, and None for those not given.

    what: the name of the results in messages.
    value: the cotangents, in the structure of the results; None for none.
    like: the results.
    """
    expected = list(named_leaves(like))
    if value is None:
        return [None] * len(expected)
    parts = leaves_as(value, like)
    if parts is None:
        raise InputError(f"the cotangents of {what} are {skeleton(value)}; {what} are {skeleton(like)}")
    arrays: list[Array | None] = []
    for (name, right), leaf in zip(expected, parts, strict=True):
        title = f"the cotangent of {what} {name}".strip()
        if leaf is None:
            arrays.append(None)
            continue
        if isinstance(right, Ragged) != isinstance(leaf, Ragged):
            kind = "a Ragged" if isinstance(right, Ragged) else f"an array {list(right.shape)}"
            raise InputError(f"{title} is a {type(leaf).__name__}; it should be {kind}, as the result is")
        array = checked_array(leaf.values if isinstance(leaf, Ragged) else leaf, title)
        values = right.values if isinstance(right, Ragged) else right
        if array.shape != values.shape or (
            isinstance(right, Ragged)
            and any(not np.array_equal(a, b) for a, b in zip(leaf.offsets, right.offsets, strict=False))
        ):
            raise InputError(f"{title} is {shape_text(leaf)}; it should be {shape_text(right)}")
        arrays.append(array)
    return arrays


def shape_text(value: Any) -> str:
    """Returns the shape of an array, or the description of a Ragged, for messages."""
    return str(value) if isinstance(value, Ragged) else str(list(value.shape))
