"""A recurrence written as a block of statements, and one written as the body of a loop.

A block makes the net that tracing a step function makes: its statements run once, on traced values, and what
they record is the step of an `RNN`. The names are those of the RNN operator in PaddlePaddle's design
(`create_rnn_op`) and of the loop in MXNet's (`foreach`).

>>> import stepnet as sn
>>> X = sn.Ragged.from_list([np.ones((3, 2), "float32"), np.ones((1, 2), "float32")])
>>> W, U = np.ones((1, 2), "float32"), np.full((1, 1), 2, "float32")
>>> rnn = sn.create_rnn_op(output_num=1)
>>> with rnn.stepnet():
...     x = rnn.add_input(X)
...     h = rnn.add_memory(shape=[1])
...     h.update(matmul(W, x) + matmul(U, h.pre_state()))
...     rnn.add_outputs(h)
>>> rnn().to_list()
[array([[ 2.], [ 6.], [14.]], dtype=float32), array([[2.]], dtype=float32)]
>>> rnn(output_all_steps=False).tolist()
[[14.0], [2.0]]

An rnn whose block takes its inputs from the block around it is a part of that one's step, and calling it
there gives a value of that step:

>>> documents = sn.Ragged(np.ones((4, 2), "float32"), (np.array([0, 2, 3]), np.array([0, 2, 2, 4])))
>>> outer = sn.create_rnn_op()
>>> with outer.stepnet():
...     sentence = outer.add_input(documents, level=1)
...     inner = sn.create_rnn_op()
...     with inner.stepnet():
...         word = inner.add_input(sentence, level=0)
...         s = inner.add_memory(shape=[2])
...         s.update(word + s.pre_state())
...         inner.add_outputs(s)
...     h = outer.add_memory(shape=[2])
...     h.update(inner(output_all_steps=False) + h.pre_state())
...     outer.add_outputs(h)
>>> outer().to_list()
[array([[2., 2.], [2., 2.]], dtype=float32), array([[2., 2.]], dtype=float32)]
"""

from collections.abc import Callable
from functools import wraps
from typing import Any

import numpy as np

from stepnet.compiler.net.types import ROWS
from stepnet.compiler.targets import checked_engine
from stepnet.compiler.trace.lines import user_frame
from stepnet.compiler.trace.spec import Spec
from stepnet.compiler.trace.traced import Traced, apply, array_of, lifted, refuse, user_line
from stepnet.compiler.values.arguments import checked_integer, flag, function, is_integer, short_repr
from stepnet.compiler.values.dtypes import promoted_float
from stepnet.compiler.values.structure import leaves, skeleton
from stepnet.errors import InputError
from stepnet.model.batch import Batch, checked_array
from stepnet.model.block import REDUCE, Block, Memory, Replay, numbered
from stepnet.model.program import Asked
from stepnet.model.recurrence import RNN, scan
from stepnet.ragged import Ragged

__all__ = ["add_two", "create_rnn_op", "foreach", "matmul"]

Array = np.ndarray


def create_rnn_op(output_num: int = 1) -> "RNNOp":
    """Returns a recurrence whose step is to be written in its `stepnet()` block.

    Args:
        output_num: The number of its outputs.

    Raises:
        InputError: For a number of outputs that is no whole number from 1 on.

    >>> import stepnet as sn
    >>> rnn = sn.create_rnn_op()
    >>> with rnn.stepnet():
    ...     x = rnn.add_input(np.ones((1, 3, 1)))
    ...     total = rnn.add_memory(shape=[1])
    ...     total.update(x + total.pre_state())
    ...     rnn.add_outputs(total)
    >>> rnn().tolist()
    [[[1.0], [2.0], [3.0]]]
    """
    return RNNOp(output_num)


class RNNOp:
    """A recurrence over its own inputs, made by a block: `with rnn.stepnet(): ...`, then `out = rnn()`.

    In the block plain NumPy arrays are parameters. Inputs and memories are traced values, and a block may use
    the operations of a step function on them. `create_rnn_op` makes it and has an example.
    """

    def __init__(self, output_num: int = 1) -> None:
        """Makes a recurrence with `output_num` outputs; its `stepnet()` block adds the step."""
        self.output_num = checked_integer(
            output_num, "output_num is how many outputs there are, 1 or more", 1
        )
        self._block = Block(self._finish)
        self._inputs: dict[str, Any] = {}
        self._specs: dict[str, Spec] = {}
        self._count: int | None = None
        self._given: str | None = None
        self._memories: dict[str, Memory] = {}
        self._outputs: list[Memory | Traced] = []
        self._recurrence: RNN | None = None

    # ---- in the block

    def stepnet(self) -> "Block":
        """Returns the block in which the step is written: `with rnn.stepnet():`, exactly once."""
        self._block.check_unused()
        return self._block

    def add_input(self, X: Any, level: int = 0) -> Traced:
        """Adds sequences as an input of the step; returns the value that each step reads.

        This value is one element of X, [rows, features...], or an inner sequence if X is nested. All inputs
        must have the same lengths.

        Args:
            X: A `Ragged`, or an array [batch, time, features...]. In a block inside another one: a sequence
                of the outer block.
            level: The level of X whose entries are the steps, counted from the innermost, 0. It is the
                outermost level of X: a `Ragged` of two levels is added with level=1, each of its steps is a
                sequence, and a block inside adds this sequence with level=0.

        Raises:
            InputError: For what is no sequences, and for another level.
            StepError: Outside the block.
        """
        self._block.check_open("add_input")
        check_sequences(X)
        self._record_kind(X, "an input")
        check_level(X, level)
        name = numbered("x", len(self._inputs))
        inputs = {**self._inputs, name: X}
        if isinstance(X, Traced):
            specs = {**self._specs, name: Spec(X.type.shape, X.type.dtype, len(X.type.extent) - 2)}
        else:
            specs, self._count = specs_and_count(inputs)
            for memory in self._memories.values():
                check_rows(f"init of `{memory.name}`", memory.init, self._count)
            for static, value in self._block.statics.items():
                check_rows(f"`{static}`", value, self._count)
        self._inputs, self._specs = inputs, specs
        return self._block.declared(name, specs[name])

    def add_memory(self, init: Any = None, shape: Any = None, dtype: Any = None) -> Memory:
        """Adds a memory, whose value each step passes to the next. Give exactly one of `init` and `shape`.

        Args:
            init: The values before the first step, [batch, features...]; the memory has their dtype. In a
                block inside another one: a value of the outer block, from which each inner sequence starts.
            shape: The features of one row, such as 30 or [20, 30]; every sequence starts from zeros. The
                number of rows is known from the inputs.
            dtype: The dtype of the zeros; by default the promoted floating dtype of the inputs added so far.

        Raises:
            StepError: For both or neither of `init` and `shape`, and outside the block.
        """
        self._block.check_open("add_memory")
        if (init is None) == (shape is None):
            raise refuse("a memory is added with init=, an array of first values, or with shape=, for zeros")
        if init is not None and dtype is not None:
            raise refuse("dtype= goes with shape=; a memory with init= has the dtype of that array")
        name = numbered("memory", len(self._memories))
        if init is None:
            default = promoted_float(spec.dtype for spec in self._specs.values())
            first, spec = None, Spec(shape, default if dtype is None else dtype)
        else:
            first, spec = self._checked_row(init, f"init of `{name}`")
        self._memories[name] = Memory(self._block, name, spec, first)
        return self._memories[name]

    def add_static(self, value: Any) -> Traced:
        """Adds a value that each sequence has once and every step sees; returns it as a value of the step.

        Args:
            value: An array [batch, features...]. In a block inside another one: a value of the outer block,
                which may also be used directly.
        """
        self._block.check_open("add_static")
        first, spec = self._checked_row(value, f"`{numbered('static', len(self._block.statics))}`")
        if isinstance(first, Traced):
            return Traced(self._block, lifted(self._block, first, ()))
        return self._block.static(first, spec)

    def index(self) -> Traced:
        """Returns the number of earlier steps of each sequence, an int64 per row (sequence of the batch)."""
        self._block.check_open("index")
        return Traced(self._block, self._block.add("index", source=user_line()))

    def _checked_row(self, value: Any, what: str) -> tuple[Any, Spec]:
        """Checks a value with one entry per sequence; returns it with its `Spec` (features and dtype).

        A constant of an enclosing block (a `with` in which another step is written) is repeated for each row.
        Raises `StepError` for a Ragged and for a sequence, and `InputError` for another number of sequences
        than before.

        value: an array [batch, features...], or a value of the block around this one.
        what: the name of the value in error messages.
        """
        if isinstance(value, Ragged):
            raise refuse(f"{what} is a Ragged; here it is an array, one entry for each sequence")
        if isinstance(value, Traced):
            self._record_kind(value, what)
            if len(value.type.extent) > 1:
                raise refuse(f"{what} is a sequence at each step of the block around; {REDUCE}")
            if value.is_constant:
                value = apply("expand", value, extent=ROWS)
            return value, Spec(value.type.shape, value.type.dtype)
        array = checked_array(array_of(value, what), what)
        self._record_kind(array, what)
        if self._count is not None:
            check_rows(what, array, self._count)
        return array, spec_of(array)

    def _record_kind(self, value: Any, what: str) -> None:
        """Records whether the block (the `with` in which the user writes a step) is given arrays or values of
        an enclosing block; raises `StepError` if mixed.

        value: an input, an initial memory, or a static (a value that each sequence has once).
        what: its name in error messages.
        """
        kind = "a value of a block" if isinstance(value, Traced) else "an array"
        if self._given not in (None, kind):
            raise refuse(
                f"{what} is {kind}, and the block was given {self._given} before: its inputs, first values "
                "and statics are all arrays, or all values of the block around it"
            )
        if isinstance(value, Traced):
            self._block.take_from(value.builder, what)
        self._given = kind

    def add_outputs(self, *outputs: Any) -> None:
        """Adds values to the outputs of the recurrence, in this order.

        Args:
            outputs: Memories, whose new values are meant, and values of the step.

        Raises:
            StepError: For more outputs than `output_num`.
        """
        self._block.check_open("add_outputs")
        count = len(self._outputs) + len(outputs)
        if count > self.output_num:
            raise refuse(f"this makes {count} outputs; the rnn was made with output_num={self.output_num}")
        for value in outputs:
            what = f"output {len(self._outputs)}"
            if isinstance(value, Memory) and value.block is not self._block:
                raise refuse(f"{what} is a memory of another rnn; `pre_state()` is its value before the step")
            known = isinstance(value, Memory)
            self._outputs.append(value if known else Traced(self._block, self._block.row(value, what)))

    def _finish(self) -> None:
        """Makes the `RNN` from the recorded net; called at the end of the block.

        Raises `StepError` if the block has no input or memory, or another number of outputs than
        `output_num`.
        """
        if not self._inputs:
            raise refuse("the block has no input: x = rnn.add_input(X)")
        if not self._memories:
            raise refuse("the block has no memory: h = rnn.add_memory(init=a), or shape=[...] for zeros")
        memories = [memory.new_state() for memory in self._memories.values()]
        if len(self._outputs) != self.output_num:
            made = len(self._outputs) or "no"
            raise refuse(
                f"the block has {made} outputs, and output_num={self.output_num}: rnn.add_outputs(h)"
            )
        outputs = [output.new_state() if isinstance(output, Memory) else output for output in self._outputs]
        statics = {name: spec_of(value) for name, value in self._block.statics.items()}
        named = variables_of(self._block)
        net = self._block.net([value.number for value in (*outputs, *memories, *named.values())])
        self._recurrence = RNN(
            Replay(net, self.output_num, tuple(named)),
            memory={name: memory.spec for name, memory in self._memories.items()},
            inputs=self._specs,
            statics=statics or None,
        )

    # ---- after the block

    @property
    def recurrence(self) -> RNN:
        """The `RNN` that the block made, to look at its net and plan; raises `StepError` before the block has
        made it.

        Its inputs are {"x": X, "x2": ...}, its memory {"memory": ...}, its statics {"static": ...} or None.
        """
        if self._recurrence is None:
            raise refuse(self._block.why_not())
        return self._recurrence

    def __call__(self, output_all_steps: bool = True, engine: Asked = "auto") -> Any:
        """Runs the recurrence; returns the output at every step in the form of the inputs, or a tuple of
        outputs.

        An rnn whose inputs are values of an outer block is called in that block and returns values of it.

        Args:
            output_all_steps: False for an array of each sequence's last output, zeros for an empty one.
            engine: An engine, or several in order of preference; as for a call.

        Raises:
            StepError: For a block that has not ended or whose outer block has, and for an engine inside a
                block.
        """
        recurrence, around = self.recurrence, self._block.around
        if isinstance(around, Block) and around.ended:
            raise refuse("this rnn takes values of a block that has ended; call it in that block")
        every = flag(output_all_steps, "output_all_steps")
        engine = checked_engine(engine)
        if around is not None and engine != "auto":
            raise refuse("an rnn inside a block runs where the outer one does; give engine= to that one")

        initial = {name: memory.before_all(self._count) for name, memory in self._memories.items()}
        given = [self._inputs, initial, self._block.statics]
        if around is not None:
            given = [
                {name: Traced(around, lifted(around, value, ())) for name, value in values.items()}
                for values in given
            ]
        inputs, initial, statics = given
        outputs, _ = recurrence(inputs, initial, statics or None, last_only=not every, engine=engine)
        return outputs

    def __array__(self, *_: Any, **__: Any) -> Any:
        """Raises `StepError`, so that NumPy does not take the recurrence for an array."""
        raise refuse("an rnn is no value; call it for its outputs: rnn()")


def check_sequences(X: Any) -> None:
    """Raises `InputError` unless the argument of `add_input` is one Ragged, array, or value of a step."""
    if skeleton(X) != "array":
        raise InputError(
            f"add_input takes one Ragged or array [batch, time, features...], not a {type(X).__name__}; "
            "add several inputs one by one"
        )
    if not isinstance(X, Traced | Ragged):
        array_of(X, "an input")


def check_level(X: Any, level: Any) -> None:
    """Raises `InputError` unless `level` is the outermost level of the sequences X (the innermost is 0), and
    `StepError` for a value of a step that is no sequence.
    """
    if isinstance(X, Traced) and len(X.type.extent) < 2:
        raise refuse(
            "add_input got a value of the block around that is no sequence there; use it as it is, or "
            "continue from it with rnn.add_memory(init=value)"
        )
    levels = len(X.type.extent) - 1 if isinstance(X, Traced) else X.levels if isinstance(X, Ragged) else 1
    if not is_integer(level) or level != levels - 1:
        has = f"{levels} levels" if levels > 1 else "one level"
        raise InputError(
            f"add_input got level={short_repr(level)} of sequences of {has}; a block runs over the "
            f"outermost, level={levels - 1}: levels are counted from the innermost, 0, which rnns inside the "
            "block reach"
        )


def specs_and_count(inputs: dict[str, Any]) -> tuple[dict[str, Spec], int]:
    """Returns the `Spec`s (features and dtype) of named Raggeds or arrays, and the number of sequences."""
    batch = Batch.of(inputs, None)
    return batch.specs, batch.count


def check_rows(what: str, array: Any, count: int) -> None:
    """Raises `InputError` unless an array, `what` in the message, has `count` entries; None passes."""
    if array is not None and (array.ndim < 1 or len(array) != count):
        raise InputError(
            f"{what} is {list(array.shape)}; its first axis should be the {count} sequences of the inputs"
        )


def variables_of(block: Block) -> dict[str, Traced]:
    """Returns the values of a block (the `with` in which the user writes a step) by the names of the user's
    variables, so that `trace_steps` can show them.

    A variable that holds a memory stands for the memory's new value.
    """
    frame = user_frame()
    named: dict[str, Traced] = {}
    for name, variable in () if frame is None else frame.f_locals.items():
        value = variable.new_state() if isinstance(variable, Memory) and variable.block is block else variable
        if isinstance(value, Traced) and value.builder is block:
            named[name] = value
    return named


def spec_of(array: Array) -> Spec:
    """Returns the `Spec` (features and dtype) of an array [rows, features...], for a traced input."""
    return Spec(array.shape[1:], array.dtype)


# ---- functions for blocks ----------------------------------------------------------------------------------


def matmul(W: Any, x: Any) -> Any:
    """Returns the product W x for the vector x of each row, as a formula on column vectors writes it.

    `np.matmul` needs x @ W.T for the same product.

    Args:
        W: A parameter [out, in], or [in].
        x: A value of the step, [rows, in] or [rows, in, columns].

    Raises:
        StepError: For shapes that do not fit, and for a W that has rows.
    """
    if not isinstance(x, Traced) or x.is_constant:
        raise refuse("matmul(W, x) is for an x that each row has one of; of two parameters write W @ V")
    if isinstance(W, Traced) and not W.is_constant:
        raise refuse("matmul(W, x) has the parameter on its left; write x @ W where it is on the right")
    weights = W if isinstance(W, Traced) else array_of(W, "W")
    features = x.type.shape
    if weights.ndim not in (1, 2) or len(features) not in (1, 2) or weights.shape[-1] != features[0]:
        raise refuse(
            f"matmul(W, x): W {list(weights.shape)} does not fit an x of {list(features)} in each row: "
            "the last size of W must be the first of x"
        )
    if len(features) == 1:
        return x @ weights.T
    product = x.swapaxes(1, 2) @ weights.T
    return product if weights.ndim == 1 else product.swapaxes(1, 2)


def add_two(a: Any, b: Any) -> Any:
    """Returns the sum a + b, for steps written as in PaddlePaddle's design, which has this function."""
    return a + b


# ---- the loop ----------------------------------------------------------------------------------------------


def foreach(body: Callable[[Any, Any], Any], inputs: Any, state: Any, *, engine: Asked = "auto") -> Any:
    """Runs `body` at every step of `inputs`; returns its outputs and the last state, (outputs, state).

    This is MXNet's `foreach` with other axes. There time is the first axis, and the others are the body's.
    Here the batch is first and time second, so that sequences may have different lengths and no result
    depends on another sequence.

    Args:
        body: body(x, state) -> (output, new_state), on values [rows, features...].
        inputs: A `Ragged` or an array [batch, time, features...], or a list or other structure of these.
        state: Arrays [batch, features...] in any structure: the state before the first step.
        engine: An engine, or several in order of preference; as for a call.

    Raises:
        InputError: For no state, and for inputs that do not fit.
        StepError: For a body that cannot be traced.

    >>> outputs, state = foreach(lambda x, s: (x + s[0], [x + s[0]]), np.ones((1, 3)), [np.zeros(1)])
    >>> outputs.tolist(), state[0].tolist()
    ([[1.0, 2.0, 3.0]], [3.0])
    """
    function(body, "body is a function body(x, state)")
    if not leaves(state):
        raise InputError("a loop carries a state from step to step; give its arrays [batch, features...]")

    @wraps(body)  # so that messages have the names of its parameters
    def step(x: Any, memory: Any, params: None) -> Any:
        """Calls the body in the form that `RNN` expects; there are no parameters, so `params` is None."""
        return body(x, memory)

    return scan(step, state, inputs, engine=engine)


__dir__ = __all__.copy
