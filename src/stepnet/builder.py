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
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from stepnet.errors import InputError
from stepnet.ir import Builder, Net
from stepnet.ragged import Ragged
from stepnet.recurrence import RNN, Array, Asked, Batch, checked_array, default_dtype, scan
from stepnet.step import Spec, Step, row_value
from stepnet.structure import leaves, skeleton
from stepnet.trace import Traced, refuse, user_line
from stepnet.types import ROWS, Type, is_integer


def create_rnn_op(output_num: int = 1) -> "RNNOp":
    """A recurrence of `output_num` outputs, whose step is written in its `stepnet()` block."""
    return RNNOp(output_num)


class RNNOp:
    """A recurrence over its own inputs, made by a block: `with rnn.stepnet(): ...`, then `out = rnn()`.

    In the block plain NumPy arrays are parameters; inputs and memories are traced values, on which a block
    may do what a step function may.
    """

    def __init__(self, output_num: int = 1) -> None:
        if not is_integer(output_num) or output_num < 1:
            raise InputError(f"output_num is how many outputs there are, 1 or more, not {output_num!r}")
        self.output_num = int(output_num)
        self._block = Block(self._finish)
        self._batch: Batch | None = None
        self._memories: dict[str, Memory] = {}
        self._outputs: list[Any] = []
        self._recurrence: RNN | None = None

    # ---- in the block

    def stepnet(self) -> "Block":
        """The block in which the step is written, once: `with rnn.stepnet():`."""
        self._block.check_unused()
        return self._block

    def add_input(self, X: Any, level: int = 0) -> Traced:
        """What a step sees of X: its slice, [rows, features...].

        X: a Ragged, or an array [batch, time, features...]; several inputs all have the same lengths. level:
        the level of a Ragged whose entries are the steps; 0 is the innermost.
        """
        self._block.check_open("add_input")
        before: dict[str, Any] = {} if self._batch is None else self._batch.structure
        name = numbered("x", len(before))
        batch = Batch.of({**before, name: sequences_at(X, level)}, None)
        for memory in self._memories.values():
            check_rows(memory.name, memory.init, batch.count)
        self._batch = batch
        return self._block.declared(name, spec_of(batch.arrays[-1]))

    def add_memory(self, init: Any = None, shape: Any = None, dtype: Any = None) -> "Memory":
        """A memory: what each step leaves to the next.

        init: its value before the first step, [batch, features...], whose dtype it keeps. Or shape, for
        zeros: the features of one row, as 30, or [20, 30] for a memory that is a matrix. The rows, one per
        sequence, are no part of it: how many there are is known from the inputs alone. dtype: of the zeros;
        without it the promoted floating dtype of the inputs added so far.
        """
        self._block.check_open("add_memory")
        if (init is None) == (shape is None):
            raise refuse("a memory is added with init=, an array of first values, or with shape=, for zeros")
        if init is not None and dtype is not None:
            raise refuse("dtype= goes with shape=; a memory with init= has the dtype of that array")
        name = numbered("memory", len(self._memories))
        if init is None:
            arrays = [] if self._batch is None else self._batch.arrays
            default = default_dtype([array.dtype for array in arrays])
            first, spec = None, Spec(shape, default if dtype is None else dtype)
        else:
            first = checked_array(init, f"init of `{name}`")
            spec = spec_of(first)
        if self._batch is not None:
            check_rows(name, first, self._batch.count)
        self._memories[name] = Memory(self._block, name, spec, first)
        return self._memories[name]

    def add_outputs(self, *outputs: Any) -> None:
        """Makes these the next outputs of the rnn: of a memory its new value, or a value of the step."""
        self._block.check_open("add_outputs")
        count = len(self._outputs) + len(outputs)
        if count > self.output_num:
            raise refuse(f"this makes {count} outputs; the rnn was made with output_num={self.output_num}")
        self._outputs += outputs

    def _finish(self) -> None:
        """Makes the recurrence, at the end of the block."""
        if self._batch is None:
            raise refuse("the block has no input: x = rnn.add_input(X)")
        if not self._memories:
            raise refuse("the block has no memory: h = rnn.add_memory(init=a), or shape=[...] for zeros")
        memories = [memory.new_state() for memory in self._memories.values()]
        if len(self._outputs) != self.output_num:
            made = len(self._outputs) or "no"
            raise refuse(
                f"the block has {made} outputs, and output_num={self.output_num}: rnn.add_outputs(h)"
            )
        outputs = [one.new_state() if isinstance(one, Memory) else one for one in self._outputs]
        results = [row_value(self._block, one, f"output {place}") for place, one in enumerate(outputs)]
        net = self._block.net([*results, *(memory.number for memory in memories)])
        self._recurrence = RNN(
            replay(net, self.output_num),
            memory={name: memory.spec for name, memory in self._memories.items()},
            inputs=dict(zip(self._batch.structure, map(spec_of, self._batch.arrays), strict=True)),
        )

    # ---- after it

    @property
    def recurrence(self) -> RNN:
        """The `RNN` that the block made: its net, plan and explain(). Its inputs are {"x": X, "x2": ...}."""
        if self._recurrence is None:
            raise refuse(self._block.why_not())
        return self._recurrence

    def __call__(self, output_all_steps: bool = True, engine: Asked = "auto") -> Any:
        """The output, or the tuple of several, at every step of the inputs that were added, in their form.

        With output_all_steps=False an array of each sequence's own last, zeros for an empty one.
        """
        if self._batch is None or self._recurrence is None:
            raise refuse(self._block.why_not())
        initial = {name: memory.before_all(self._batch.count) for name, memory in self._memories.items()}
        outputs, _ = self._recurrence(
            self._batch.structure, initial, last_only=not output_all_steps, engine=engine
        )
        return outputs


class Block(Builder):
    """The net that a block records between its begin and its end."""

    def __init__(self, finish: Callable[[], None]) -> None:
        super().__init__()
        self.finish = finish
        self.begun = self.ended = False

    def __enter__(self) -> None:
        self.check_unused()
        self.begun = True

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        try:
            if error is None:
                self.finish()
        finally:
            self.ended = True

    def add(self, operation: str, *inputs: int, name: str = "", source: str = "", **attributes: Any) -> int:
        """The number of the node that applies `operation`; refused after the end."""
        if self.ended:
            raise refuse("a value of a block is used after the block has ended; make it an output of the rnn")
        return super().add(operation, *inputs, name=name, source=source, **attributes)

    def declared(self, name: str, spec: Spec) -> Traced:
        """A new input of the net."""
        return Traced(self, self.input(Type(ROWS, spec.shape, str(spec.dtype)), name))

    def check_unused(self) -> None:
        """Refuses a second use of the block."""
        if self.begun:
            raise refuse("this rnn has its block already; write another on another sn.create_rnn_op()")

    def check_open(self, what: str) -> None:
        """Refuses what belongs between begin and end."""
        if not self.begun:
            raise refuse(f"{what} before the block has begun; write it in `with rnn.stepnet():`")
        if self.ended:
            raise refuse(f"{what} after the block has ended; write it in `with rnn.stepnet():`")

    def why_not(self) -> str:
        """Why there is nothing to run."""
        if not self.begun:
            return "the rnn has no step yet; write it in `with rnn.stepnet():`, then call the rnn"
        if not self.ended:
            return "the rnn is called in its own block; call it after the block has ended"
        return "the block of this rnn ended with an error; mend it, on another sn.create_rnn_op()"


class Memory:
    """A memory of a block: its value before a step, and the one it is updated with."""

    def __init__(self, block: Block, name: str, spec: Spec, init: Array | None) -> None:
        self.block = block
        self.name = name
        self.spec = spec
        self.init = init
        self._before = block.declared(name, spec)
        self._new: Traced | None = None
        self._added = user_line()
        self._updated = ""

    def pre_state(self) -> Traced:
        """The memory of the previous step, [rows, features...]; the first values at the first step."""
        self.block.check_open(f"pre_state() of `{self.name}`")
        return self._before

    def update(self, new: Any) -> None:
        """Makes `new` the memory of this step; once in a block."""
        self.block.check_open(f"update() of `{self.name}`")
        if self._new is not None:
            raise refuse(f"`{self.name}` is updated twice, first\n  at {self._updated}\nand again")
        value = Traced(self.block, row_value(self.block, new, f"the update of `{self.name}`"))
        if value.type != self._before.type:
            raise refuse(
                f"`{self.name}` is {self._before.type.element} and is updated with {value.type.element}; "
                f"update it with the shape and dtype it was added with{self._advice(value.type)}"
            )
        self._new, self._updated = value, user_line()

    def _advice(self, new: Type) -> str:
        """What is likely meant, where an update does not fit."""
        if new.shape == self.spec.shape:
            return " (cast it with .astype, or add the memory with that dtype)"
        if self.init is None and new.shape == self.spec.shape[1:]:
            return " (shape= is the features of one row, without the number of rows)"
        return ""

    def new_state(self) -> Traced:
        """The value it was updated with."""
        if self._new is None:
            raise refuse(
                f"`{self.name}` is never updated: h.update(new); it is added\n  at {self._added}\nin"
            )
        return self._new

    def before_all(self, count: int) -> Array:
        """The values before the first step, one for each sequence."""
        return np.zeros((count, *self.spec.shape), self.spec.dtype) if self.init is None else self.init

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise refuse(f"`{self.name}` is a memory, not a value; `pre_state()` is its value before the step")


def sequences_at(X: Any, level: int) -> Any:
    """The sequences whose entries are the steps; what this refuses is what nesting would be."""
    if isinstance(X, Traced):
        raise InputError("add_input got a value of another block; nested recurrences are not there yet")
    if skeleton(X) != "*":
        raise InputError(
            f"add_input takes one Ragged or array [batch, time, features...], not a {type(X).__name__}; "
            "add several inputs one by one"
        )
    levels = X.levels if isinstance(X, Ragged) else 1
    if level != 0 or levels != 1:
        raise InputError(
            f"add_input got level={level} of {levels}; nested levels are not there yet: "
            "use level=0 of a Ragged of one level, whose entries are the steps"
        )
    return X


def check_rows(name: str, init: Array | None, count: int) -> None:
    """Raises `InputError` unless a memory has a first value for each sequence, or none."""
    if init is not None and len(init) != count:
        raise InputError(
            f"init of `{name}` is {list(init.shape)}; "
            f"its first axis should be the {count} sequences of the inputs"
        )


def replay(net: Net, output_num: int) -> Step:
    """The step that a net is: its inputs by their names, its results the outputs and the next memories."""

    def block(x: dict[str, Traced], memory: dict[str, Traced], params: None) -> tuple[Any, Any]:
        given = {**x, **memory}
        builder = next(iter(given.values())).builder
        place: list[int] = []
        for node in net.nodes:
            if node.operation == "input":
                place.append(given[node.name].number)
            else:
                place.append(builder.copy(node, [place[operand] for operand in node.inputs]))
        results = [Traced(builder, place[number]) for number in net.results]
        outputs, after = results[:output_num], results[output_num:]
        return (
            outputs[0] if output_num == 1 else tuple(outputs),
            dict(zip(memory, after, strict=True)),
        )

    return block


def numbered(name: str, before: int) -> str:
    """The name of one more: x, x2, x3."""
    return f"{name}{before + 1}" if before else name


def spec_of(array: Array) -> Spec:
    """The features and dtype of [rows, features...]."""
    return Spec(array.shape[1:], array.dtype)


# ---- what a block says of its own --------------------------------------------------------------------------


def matmul(W: Any, x: Any) -> Any:
    """W @ x for the x of each row: [rows, out] for W [out, in] and x [rows, in].

    As a formula on one column writes it, where np.matmul wants x @ W.T. x may also be a matrix [in, columns]
    in each row; W may be a vector [in].
    """
    if not isinstance(x, Traced) or x.is_constant:
        raise refuse("matmul(W, x) is for an x that each row has one of; of two parameters write W @ V")
    if isinstance(W, Traced) and not W.is_constant:
        raise refuse("matmul(W, x) has the parameter on its left; write x @ W where it is on the right")
    weights = W if isinstance(W, Traced) else np.asarray(W)
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
    """a + b."""
    return a + b


# ---- the loop ----------------------------------------------------------------------------------------------


def foreach(body: Callable[[Any, Any], Any], inputs: Any, state: Any, *, engine: Asked = "auto") -> Any:
    """The outputs of `body` at every step of `inputs`, and the last state: (outputs, state).

    body(x, state) -> (output, new_state). inputs: a Ragged or an array [batch, time, features...], or a list
    or other structure of these. state: arrays [batch, features...], in any structure, which the body gets and
    returns. It is MXNet's `foreach`, but for the axes: there time is the first axis and the rest is the
    body's; here the batch is first and time second, as everywhere in stepnet, so that sequences may have
    lengths of their own (a Ragged) and no sequence's result depends on another's.

    >>> outputs, state = foreach(lambda x, s: (x + s[0], [x + s[0]]), np.ones((1, 3)), [np.zeros(1)])
    >>> outputs.tolist(), state[0].tolist()
    ([[1.0, 2.0, 3.0]], [3.0])
    """
    if not callable(body):
        raise InputError(f"body is a function body(x, state), not a {type(body).__name__}")
    if not leaves(state):
        raise InputError("a loop carries a state from step to step; give its arrays [batch, features...]")

    def step(x: Any, memory: Any, params: None) -> Any:
        return body(x, memory)

    return scan(step, state, inputs, engine=engine)
