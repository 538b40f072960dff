"""A step run over sequences of any length: `RNN`, and `scan`."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from stepnet.engines import Bound, Call, choose
from stepnet.errors import InputError
from stepnet.ir import Net
from stepnet.plan import Plan, plan
from stepnet.ragged import Ragged
from stepnet.report.explain import explain
from stepnet.step import Spec, Step, TracedStep, dtype_name, specs, trace_step
from stepnet.structure import leaves, named_leaves, rebuild, skeleton, transform

Array = np.ndarray
Asked = str | Sequence[str]


@dataclass(frozen=True)
class Prepared:
    """A step traced for one kind of input, planned, and compiled by the engines used so far."""

    traced: TracedStep
    plan: Plan
    runners: dict[Asked, Bound] = field(default_factory=dict[Asked, Bound])

    def runner(self, asked: Asked, parameters: list[Array]) -> Bound:
        """What runs a call on the engine asked for."""
        if asked not in self.runners:
            engine, _ = choose(self.plan, asked)
            self.runners[asked] = engine.compile(self.plan).bind(parameters)
        return self.runners[asked]


class RNN:
    """A recurrence: `outputs, final = rnn(sequences)`.

    step(x, memory, params) -> (output, memory), each an array or a nested dict, tuple or namedtuple of arrays
    [rows, features...]. A step with parameters named `statics` or `index` gets them too: arrays that each
    sequence has one of, and how many steps of the sequence came before. params: arrays, in any structure.
    memory: the features of the memory, as 64, (4, 16), {"h": 64, "c": 64} or `Spec`s; floats of the promoted
    dtype of inputs and parameters, unless a `Spec` says otherwise. inputs: the features of the inputs,
    likewise; without it they are known at the first call. reverse: each sequence runs from its own last step.

    >>> import stepnet as sn
    >>> def step(x, h, params):
    ...     h = np.tanh(x @ params["W"] + h @ params["R"])
    ...     return h, h
    >>> ones = {"W": np.ones((1, 2), "float32"), "R": np.zeros((2, 2), "float32")}
    >>> rnn = sn.RNN(step, ones, memory=2)
    >>> outputs, final = rnn(sn.Ragged.from_list([np.zeros((3, 1), "float32"), np.ones((1, 1), "float32")]))
    >>> outputs.to_list()[1].round(2)
    array([[0.76, 0.76]], dtype=float32)
    >>> final.round(2)
    array([[0.  , 0.  ],
           [0.76, 0.76]], dtype=float32)
    """

    def __init__(
        self,
        step: Step,
        params: Any = None,
        *,
        memory: Any,
        inputs: Any = None,
        statics: Any = None,
        reverse: bool = False,
    ) -> None:
        if not callable(step):
            raise InputError(f"step is a function step(x, memory, params), not a {type(step).__name__}")
        self.step = step
        self.params = transform(parameter, params)
        self.memory = specs(memory)
        if not leaves(self.memory):
            raise InputError("a recurrence carries a memory from step to step; give its features: memory=64")
        self.reverse = reverse
        self._parameters: list[Array] = leaves(self.params)
        self._prepared: dict[Any, Prepared] = {}
        self._seen: dict[Any, Prepared] = {}
        self._latest: Prepared | None = None
        self.inputs = specs(inputs)
        if inputs is not None:
            self._latest = self._prepare(self.inputs, specs(statics))

    # ---- looking at it

    @property
    def prepared(self) -> Prepared:
        """The latest trace; raises `InputError` before the inputs are known."""
        if self._latest is None:
            raise InputError("the inputs are not known yet: call the RNN once, or make it with inputs=")
        return self._latest

    @property
    def net(self) -> Net:
        """The net of the whole recurrence, as traced."""
        return self.prepared.traced.net(self.reverse)

    @property
    def plan(self) -> Plan:
        """What is done once, before, in and after the loop."""
        return self.prepared.plan

    def explain(self, engine: Asked = "auto") -> str:
        """The plan as text for people: what runs when, its flops and bytes, and the engine."""
        return explain(self.plan, engine)

    def __repr__(self) -> str:
        name = getattr(self.step, "__name__", type(self.step).__name__)
        return f"RNN({name}, memory={skeleton(self.memory)}{', reverse=True' if self.reverse else ''})"

    # ---- running it

    def __call__(
        self,
        sequences: Any,
        initial: Any = None,
        statics: Any = None,
        lengths: Any = None,
        last_only: bool = False,
        engine: Asked = "auto",
    ) -> tuple[Any, Any]:
        """The outputs, and each sequence's own last memory.

        sequences: a `Ragged`, or an array [batch, time, features...] (with `lengths`, [batch], where they
        differ), or a structure of these as the step expects it. initial, statics: arrays [batch, features...]
        in the structure of the memory and of the statics. Outputs come as the input came: a Ragged for a
        Ragged, an array for an array (zeros beyond the lengths); with `last_only` an array of each sequence's
        last, zeros for an empty one.
        """
        batch = Batch.of(sequences, lengths)
        static_arrays = transform(lambda leaf: checked_array(leaf, "a static"), statics)
        found = self._prepare_for(batch, static_arrays)
        call = Call(
            batch.arrays,
            batch.starts,
            batch.lengths,
            batch.total,
            initial_arrays(initial, found.traced, batch.count),
            row_arrays(static_arrays, batch.count),
            last_only,
            self.reverse,
        )
        asked = engine if isinstance(engine, str) else tuple(engine)
        results = found.runner(asked, self._parameters)(call)
        outputs = results.outputs if last_only else [batch.laid_out(output) for output in results.outputs]
        return rebuild(found.traced.output, outputs), rebuild(found.traced.memory, results.final)

    def _prepare_for(self, batch: "Batch", statics: Any) -> Prepared:
        """The trace for inputs like these, found again by their dtypes and features."""
        key = (batch.skeleton, *((a.dtype, a.shape[1:]) for a in batch.arrays))
        if statics is not None:
            key += (skeleton(statics), *((a.dtype, a.shape[1:]) for a in leaves(statics)))
        if key not in self._seen:
            inputs = rebuild(batch.structure, [Spec(a.shape[1:], a.dtype) for a in batch.arrays])
            check_inputs(self.inputs, inputs)
            given = transform(lambda array: Spec(array.shape[1:], array.dtype), statics)
            self._seen[key] = self._prepare(inputs, given)
        self._latest = self._seen[key]
        return self._latest

    def _prepare(self, inputs: Any, statics: Any) -> Prepared:
        inputs = with_dtypes(inputs, leaves(self.params))
        key = (skeleton(inputs), *leaves(inputs), skeleton(statics), *leaves(statics))
        if key not in self._prepared:
            default = default_dtype(
                [*(s.dtype for s in leaves(inputs)), *(p.dtype for p in leaves(self.params))]
            )
            memory = transform(lambda spec: Spec(spec.shape, spec.dtype or default), self.memory)
            statics = transform(lambda spec: Spec(spec.shape, spec.dtype or default), statics)
            traced = trace_step(self.step, inputs, memory, statics, self.params)
            self._prepared[key] = Prepared(traced, plan(traced.net(self.reverse)))
        self._latest = self._prepared[key]
        return self._latest


def scan(step: Step, initial: Any, xs: Any, params: Any = None, *, engine: Asked = "auto") -> tuple[Any, Any]:
    """The outputs and final memory of `step` over `xs`, from the memory `initial` of each sequence.

    xs: a Ragged or [batch, time, features...]; initial: arrays [batch, features...], which also say the
    memory's shapes and dtypes.
    """
    arrays = transform(lambda leaf: checked_array(leaf, "an initial memory"), initial)
    memory = transform(lambda array: Spec(array.shape[1:], array.dtype), arrays)
    return RNN(step, params, memory=memory)(xs, initial=arrays, engine=engine)


# ---- arrays as they come -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Batch:
    """Sequences as given: [total, features...] arrays, where each sequence lies, and how to answer."""

    structure: Any
    arrays: list[Array]
    starts: Array
    lengths: Array
    total: int
    like: Any

    @property
    def count(self) -> int:
        """How many sequences there are."""
        return len(self.lengths)

    @property
    def skeleton(self) -> str:
        """The structure of the inputs as text."""
        return "*" if isinstance(self.structure, Ragged | np.ndarray) else skeleton(self.structure)

    @classmethod
    def of(cls, sequences: Any, lengths: Any) -> "Batch":
        """The batch that a caller's sequences are; raises `InputError` where they do not fit together."""
        if isinstance(sequences, Ragged):
            if lengths is not None:
                raise InputError(
                    "a Ragged knows its lengths; lengths= goes with an array [batch, time, features]"
                )
            return cls._of_ragged(sequences, [("", sequences)], sequences)
        named = list(named_leaves(sequences))
        if not named:
            raise InputError("there are no input sequences")
        if all(isinstance(leaf, Ragged) for _, leaf in named):
            return cls._of_ragged(sequences, named, named[0][1])
        return cls._of_arrays(sequences, named, lengths)

    @classmethod
    def _of_ragged(cls, structure: Any, named: list[tuple[str, Any]], first: Ragged) -> "Batch":
        for name, ragged in named:
            if ragged.levels != 1:
                raise InputError(
                    f"input {name} has {ragged.levels} levels of sequences; a recurrence runs over one"
                )
            if len(ragged) != len(first) or not np.array_equal(ragged.offsets[0], first.offsets[0]):
                raise InputError(f"inputs `{named[0][0]}` and `{name}` have sequences of different lengths")
        arrays = [checked_array(ragged.values, f"input {name}".strip()) for name, ragged in named]
        offsets = first.offsets[0]
        return cls(structure, arrays, offsets[:-1], np.diff(offsets), int(offsets[-1]), first)

    @classmethod
    def _of_arrays(cls, structure: Any, named: list[tuple[str, Any]], lengths: Any) -> "Batch":
        arrays = [checked_array(leaf, f"input {name}".strip()) for name, leaf in named]
        for array in arrays:
            if array.ndim < 2:
                raise InputError(
                    f"sequences are a Ragged or an array [batch, time, features]; this one is {array.shape}"
                )
            if array.shape[:2] != arrays[0].shape[:2]:
                raise InputError(
                    f"inputs have different batch and time: {arrays[0].shape[:2]} and {array.shape[:2]}"
                )
        count, time = arrays[0].shape[:2]
        found = np.full(count, time, np.int64) if lengths is None else checked_lengths(lengths, count, time)
        flat = [array.reshape(count * time, *array.shape[2:]) for array in arrays]
        return cls(
            structure, flat, np.arange(count, dtype=np.int64) * time, found, count * time, (count, time)
        )

    def laid_out(self, output: Array) -> Any:
        """An output as the input came."""
        if isinstance(self.like, Ragged):
            return self.like.with_values(output)
        return output.reshape(*self.like, *output.shape[1:])


def checked_array(value: Any, what: str) -> Array:
    """The value as a C-contiguous array of a dtype that stepnet knows."""
    if isinstance(value, Ragged):
        raise InputError(f"{what} is a Ragged among arrays; give all inputs as Raggeds or all as arrays")
    array = np.asarray(value)
    if array.dtype == object:
        raise InputError(
            f"{what} is an array of Python objects; sequences of different lengths go in a "
            "Ragged: sn.Ragged.from_list(sequences)"
        )
    dtype_name(array.dtype, what)
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    return np.ascontiguousarray(array)


def check_inputs(declared: Any, given: Any) -> None:
    """Raises `InputError` where inputs have other features than those the recurrence was made for."""
    if declared is None:
        return
    if skeleton(declared) != skeleton(given):
        raise InputError(
            f"the inputs are {skeleton(given)}; this recurrence was made for {skeleton(declared)}"
        )
    for (name, expected), found in zip(named_leaves(declared), leaves(given), strict=True):
        if expected.shape != found.shape:
            what = f"input {name}".strip()
            raise InputError(
                f"{what} has features {list(found.shape)}; "
                f"this recurrence was made for {list(expected.shape)}"
            )


def checked_lengths(lengths: Any, count: int, time: int) -> Array:
    """The lengths as int64, one per sequence, none beyond the array."""
    array = np.asarray(lengths)
    if array.shape != (count,) or array.dtype.kind not in "iu":
        raise InputError(
            f"lengths are {count} whole numbers, one per sequence, not {array.dtype}{list(array.shape)}"
        )
    found = array.astype(np.int64)
    wrong = np.flatnonzero((found < 0) | (found > time))
    if len(wrong):
        raise InputError(f"lengths[{wrong[0]}] is {found[wrong[0]]}; the array has {time} steps")
    return found


def parameter(value: Any) -> Array:
    """A parameter as an array; raises `InputError` for what is none."""
    array = np.asarray(value)
    dtype_name(array.dtype, "a parameter")
    return array


def initial_arrays(initial: Any, traced: TracedStep, count: int) -> list[Array | None]:
    """The initial memories, checked against what the step expects; None for zeros."""
    expected = list(named_leaves(traced.memory))
    if initial is None:
        return [None] * len(expected)
    if skeleton(initial) != skeleton(traced.memory):
        raise InputError(f"initial is {skeleton(initial)}, the memory is {skeleton(traced.memory)}")
    found: list[Array | None] = []
    for (name, spec), leaf in zip(expected, leaves(initial), strict=True):
        what = f"the initial memory {name}".strip()
        array = checked_array(leaf, what)
        if array.shape != (count, *spec.shape):
            raise InputError(f"{what} is {list(array.shape)}; it should be {[count, *spec.shape]}")
        if not np.can_cast(array.dtype, spec.dtype, "same_kind"):
            raise InputError(f"{what} has dtype {array.dtype}; it should be {spec.dtype}")
        found.append(np.ascontiguousarray(array, spec.dtype))
    return found


def row_arrays(statics: Any, count: int) -> list[Array]:
    """The statics, each with one entry per sequence."""
    for name, array in named_leaves(statics):
        if array.ndim < 1 or len(array) != count:
            raise InputError(
                f"static {name or ''} is {list(array.shape)}; its first axis should be the {count} sequences"
            )
    return leaves(statics)


def default_dtype(dtypes: list[Any]) -> str:
    """The promoted floating dtype; float32 where there is none."""
    floats = [np.dtype(dtype) for dtype in dtypes if np.dtype(dtype).kind == "f"]
    return np.result_type(*floats).name if floats else "float32"


def with_dtypes(inputs: Any, params: list[Array]) -> Any:
    """Input specs with the parameters' floating dtype where they say none."""
    default = default_dtype([p.dtype for p in params])
    return transform(lambda spec: Spec(spec.shape, spec.dtype or default), inputs)
