"""The net that a with-block records, and the values that it reads from the block around it.

A value of the outer block is the same at every step of the inner block, so it is a static there.
"""

from collections.abc import Callable
from types import TracebackType
from typing import Any

import numpy as np

from stepnet.compiler.net.ir import Builder, Net
from stepnet.compiler.net.types import CONST, ROWS, Type, extent_of
from stepnet.compiler.trace.lines import NamingLine
from stepnet.compiler.trace.spec import Spec
from stepnet.compiler.trace.step import row_value
from stepnet.compiler.trace.traced import Traced, lifted, refuse, user_line
from stepnet.compiler.values.records import dataclass
from stepnet.model.watch import name_values

Array = np.ndarray
REDUCE = "sn.reduce makes one value of it"


class Block(Builder):
    """A net that is recorded by a `with` block. Its values can be used only until the end of the block.

    finish: a function without arguments that is called at the end of the block, unless an error was raised.
    """

    def __init__(self, finish: Callable[[], None]) -> None:
        """Makes a net without nodes, which the operations in the `with` block fill with the step of a
        recurrence; `finish` is called at the end of the block.
        """
        super().__init__()
        self.finish = finish
        self.begun = self.ended = False
        self.statics: dict[str, Any] = {}
        self._captured: dict[tuple[int, int], Traced] = {}

    def __enter__(self) -> None:
        """Begins the block; raises `StepError` if it was entered before."""
        self.check_unused()
        self.begun = True

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Ends the block (the `with` in which the user writes a step): calls `finish`, or passes an error on
        with the user's line added to its message.
        """
        try:
            if error is None:
                self.finish()
            else:
                NamingLine(self.finish).__exit__(kind, error, trace)
        finally:
            self.ended = True

    def add(self, operation: str, *inputs: int, name: str = "", source: str = "", **attributes: Any) -> int:
        """Adds a node to the net of the block; returns its number there. Raises `StepError` after the block.
        A block is the `with` in which the user writes the step of a recurrence.

        operation, inputs: the operation, and the numbers of the nodes that it is applied to.
        name, source: the name of the value and the user's line, for messages.
        """
        self.check_usable()
        return super().add(operation, *inputs, name=name, source=source, **attributes)

    def declared(self, name: str, spec: Spec) -> Traced:
        """Adds an input to the net of the block (the `with` in which the user writes a step); returns its
        value. name: its name. spec: its features, its dtype, and the levels of sequences inside each step.
        """
        return Traced(
            self, self.input(Type(extent_of(1 + spec.levels), spec.shape, str(spec.dtype)).computed, name)
        )

    # ---- the enclosing block

    def take_from(self, other: Builder, what: str) -> None:
        """Records that a value of another block (the `with` in which the user writes a step) is used here,
        which makes that block the enclosing one.

        other: the other block.
        what: the name of the value in messages.

        Raises `StepError` if the other block cannot enclose this one.
        """
        if other is self or other.is_inside(self):
            raise refuse(
                f"{what} is a value of this very block; it takes arrays, or values of a block around"
            )
        if isinstance(other, Block):
            other.check_usable()
        if self.around is None or other.is_inside(self.around):
            self.around = other
        elif not (self.around is other or self.around.is_inside(other)):
            raise refuse(f"{what} is a value of another block than what this one was given before")

    def static(self, value: Any, spec: Spec) -> Traced:
        """Adds a static (one value per sequence) to the net of the block (the `with` in which the user writes
        a step); returns its traced value.

        value: the value that a call passes for it.
        spec: its features and dtype.
        """
        name = numbered("static", len(self.statics))
        self.statics[name] = value
        return self.declared(name, spec)

    def captured(self, other: Builder, number: int) -> int:
        """Returns the number of the input of this block (the `with` in which the user writes a step) that
        stands for a value of an enclosing block.

        The input is added at first use. Raises `StepError` unless the value is one per row.

        other, number: the enclosing block, and the number of the value in it.
        """
        key = (id(other), number)
        if key not in self._captured:
            value = Traced(other, number)
            if value.type.extent == CONST:
                raise refuse(
                    "a parameter of the step around a block is used in it; use its array, or rnn.add_static"
                )
            if value.type.extent != ROWS:
                raise refuse(
                    "a value that is a sequence at each step of the block around enters a block inside by "
                    f"rnn.add_input(sequence); {REDUCE}"
                )
            self._captured[key] = self.static(value, Spec(value.type.shape, value.type.dtype))
        return self._captured[key].number

    def row(self, leaf: Any, what: str) -> int:
        """Returns the number in the net of this block (the `with` in which the user writes a step) of a value
        with one entry per row (sequence of the batch).

        leaf: an array, or a value of this block or of an enclosing one; raises `StepError` for one of an
            inner block.
        what: its name in messages.
        """
        if isinstance(leaf, Traced) and leaf.builder.is_inside(self):
            raise refuse(
                f"{what} is a value of a block inside this one; make it an output of that rnn and call that"
            )
        if isinstance(leaf, Traced) and self.is_inside(leaf.builder):
            leaf = Traced(self, lifted(self, leaf, ()))
        return row_value(self, leaf, what)

    # ---- checks

    def check_usable(self) -> None:
        """Raises `StepError` after the end of the block, when its values can no longer be used."""
        if self.ended:
            raise refuse("a value of a block is used after the block has ended; make it an output of the rnn")

    def check_unused(self) -> None:
        """Raises `StepError` if the block was entered before, as a block can be written only once."""
        if self.begun:
            raise refuse("this rnn has its block already; write another on another sn.create_rnn_op()")

    def check_open(self, what: str) -> None:
        """Raises `StepError` outside the `with` block. what: the name of the call that belongs inside."""
        if not self.begun:
            raise refuse(f"{what} before the block has begun; write it in `with rnn.stepnet():`")
        if self.ended:
            raise refuse(f"{what} after the block has ended; write it in `with rnn.stepnet():`")

    def why_not(self) -> str:
        """Returns the reason why the recurrence of this block (the `with` in which the user writes a step)
        cannot be called, as an error message.
        """
        if not self.begun:
            return "the rnn has no step yet; write it in `with rnn.stepnet():`, then call the rnn"
        if not self.ended:
            return "the rnn is called in its own block; call it after the block has ended"
        return "the block of this rnn ended with an error; mend it, on another sn.create_rnn_op()"


class Memory:
    """A memory of a block, made by `RNNOp.add_memory`: a value that each step passes to the next.

    init: the values before the first step; None for zeros.
    """

    def __init__(self, block: Block, name: str, spec: Spec, init: Array | Traced | None) -> None:
        """Adds the memory to the net of a block (the `with` in which the user writes a step), with the place
        in the user's code for error messages.

        name, spec: its name in messages, and its features and dtype.
        init: the values before the first step, an array or values of an enclosing block; None for zeros.
        """
        self.block = block
        self.name = name
        self.spec = spec
        self.init = init
        self._before = block.declared(name, spec)
        self._new: Traced | None = None
        self._added = user_line()
        self._updated = ""

    def pre_state(self) -> Traced:
        """Returns the value of the memory before this step, [rows, features...]."""
        self.block.check_open(f"pre_state() of `{self.name}`")
        return self._before

    def update(self, new: Any) -> None:
        """Sets the memory after this step; must be called exactly once in a block (the `with` in which the
        user writes a step).

        Raises:
            StepError: For a second update, and for another shape or dtype.
        """
        self.block.check_open(f"update() of `{self.name}`")
        if self._new is not None:
            raise refuse(f"`{self.name}` is updated twice, first\n  at {self._updated}\nand again")
        value = Traced(self.block, self.block.row(new, f"the update of `{self.name}`"))
        if value.type.extent != ROWS:
            raise refuse(f"`{self.name}` is updated with what is a sequence at each step; {REDUCE}")
        if value.type != self._before.type:
            raise refuse(
                f"`{self.name}` is {self._before.type.element} and is updated with {value.type.element}; "
                f"update it with the shape and dtype it was added with{self._advice(value.type)}"
            )
        self._new, self._updated = value, user_line()

    def _advice(self, new: Type) -> str:
        """Returns a hint at the likely mistake in an update of this memory with a value of the wrong type
        `new`; empty if there is none.
        """
        if new.shape == self.spec.shape:
            return " (cast it with .astype, or add the memory with that dtype)"
        if self.init is None and new.shape == self.spec.shape[1:]:
            return " (shape= is the features of one row, without the number of rows)"
        return ""

    def new_state(self) -> Traced:
        """Returns the value that the memory was updated with.

        Raises:
            StepError: Before the update.
        """
        if self._new is None:
            raise refuse(
                f"`{self.name}` is never updated: h.update(new); it is added\n  at {self._added}\nin"
            )
        return self._new

    def before_all(self, count: int | None) -> Any:
        """Returns the memory's values before the first step: `init`, or zeros for `count` sequences.

        count: the number of sequences; None for zeros without a batch axis, which a block (the `with` of a
            step) inside another one repeats for each row.
        """
        if self.init is not None:
            return self.init
        return np.zeros(self.spec.shape if count is None else (count, *self.spec.shape), self.spec.dtype)

    def __array__(self, *_: Any, **__: Any) -> Any:
        """Raises `StepError`, so that NumPy does not take the memory for an array."""
        raise refuse(f"`{self.name}` is a memory, not a value; `pre_state()` is its value before the step")


def numbered(name: str, before: int) -> str:
    """Returns the name of the next value of a kind, given the number of values before it: x, x2, x3."""
    return f"{name}{before + 1}" if before else name


@dataclass(frozen=True)
class Replay:
    """A step function that runs a recorded net, so that `RNN` can trace a step written as a block.

    net: the recorded net. Its inputs are found by name; its results are the outputs, the next memories and
        the named values, in this order.
    output_num: the number of outputs.
    names: the names of the named values.
    """

    net: Net
    output_num: int
    names: tuple[str, ...]
    __name__ = "block"

    def __call__(
        self, x: dict[str, Traced], memory: dict[str, Traced], params: None, statics: dict[str, Traced] | None
    ) -> tuple[Any, Any]:
        """Copies the recorded net into the net that is being traced; returns its outputs and next memories.

        Also records the names of its named values, for `trace_steps`.

        x, memory, statics: the inputs, memories and values that each sequence has once, of the net that is
            being traced, by the names of the recorded net's inputs.
        """
        net, output_num = self.net, self.output_num
        given = {**x, **memory, **(statics or {})}
        builder = next(iter(given.values())).builder
        place: list[int] = []
        for node in net.nodes:
            if node.operation == "input":
                place.append(given[node.name].number)
            else:
                place.append(builder.copy(node, [place[operand] for operand in node.inputs]))
        results = [Traced(builder, place[number]) for number in net.results]
        outputs, after = results[:output_num], results[output_num : output_num + len(memory)]
        name_values(dict(zip(self.names, results[output_num + len(memory) :], strict=True)))
        return (outputs[0] if output_num == 1 else tuple(outputs), dict(zip(memory, after, strict=True)))
