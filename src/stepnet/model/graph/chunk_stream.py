"""`ChunkStream`: a model that takes chunks of steps, and gives the outputs that are ready."""

from dataclasses import replace
from os import PathLike
from typing import Any, cast

import numpy as np

from stepnet.compiler.net.digest import digest
from stepnet.compiler.net.types import Literal
from stepnet.compiler.targets import Order
from stepnet.compiler.trace.spec import Spec
from stepnet.compiler.values.arguments import checked_integer, file_path, flag
from stepnet.compiler.values.structure import leaves, rebuild, skeleton, titled_leaves
from stepnet.compiler.values.version import __version__
from stepnet.errors import FileError, InputError
from stepnet.layout.files import safetensors
from stepnet.model.batch import Batch
from stepnet.model.forms import is_plain
from stepnet.model.graph.chunk_rows import TAKEN, ChunkRows, arrays_of
from stepnet.model.graph.programs import GraphProgram, GraphPrograms
from stepnet.model.specs import arranged_as
from stepnet.model.statics import Statics
from stepnet.model.streams.beginning import copied
from stepnet.model.streams.chunk_model import ChunkModel
from stepnet.model.streams.chunk_parts import Chunk
from stepnet.model.streams.in_use import alone
from stepnet.model.streams.rows import chosen_once, sources
from stepnet.model.streams.stream import MOST_ROWS, ROWS_ARE
from stepnet.model.streams.waiting import Kept, WaitingSteps, kept_and, kept_of, kept_with
from stepnet.ragged import Ragged

Array = np.ndarray
FORMAT, VERSION = "stepnet.chunks", "1"
UNKNOWN = (
    "the inputs of the graph are not known yet, and with them what a stream keeps of its rows: give the "
    "first chunk, call the graph once, or make it with inputs="
)


class ChunkStream:
    """A model that takes chunks of steps of rows (sequences side by side), and gives the outputs that are
    ready; `graph.stream_chunks()` makes it.

    The outputs of all chunks, one after the other, equal the outputs of a call over the whole sequences, with
    the same bits, however the sequences are cut. A convolution that reads later steps delays each output by
    as many steps, and a convolution with a stride gives fewer outputs than steps. A call that raises an error
    leaves the stream as it was. One thread uses a stream at a time.

    >>> import stepnet as sn
    >>> middle = sn.Graph(lambda x, weight: sn.conv1d(x, weight, padding="same"), np.float32([[[1, 1, 1]]]))
    >>> stream = middle.stream_chunks()
    >>> stream.chunk(np.float32([[[1], [2], [3]]])).tolist()
    [[[3.0], [6.0]]]
    >>> stream.chunk(np.float32([[[4]]]), last=True).tolist()
    [[[9.0], [7.0]]]
    """

    def __init__(self, programs: GraphPrograms, rows: Any, initial: Any, statics: Any, engine: Order) -> None:
        """Stores the arguments of `Graph.stream_chunks`; the model is traced at the first chunk.

        programs: the programs of the graph. rows: the number of rows. initial: the state that they go on
        from, or None. statics: values that each row has once. engine: the engines in order of preference.
        """
        self.programs, self.engine, self.in_use = programs, engine, False
        self._count = checked_integer(rows, ROWS_ARE, 0, MOST_ROWS)
        self._statics = Statics.of(copied(statics), self._count)
        if self._statics.beside:
            raise InputError("a stream of chunks has no static sequences: give arrays [rows, features...]")
        self._initial = copied(initial)
        self._rows: ChunkRows | None = None

    @property
    def rows(self) -> int:
        """The number of rows of the stream: sequences that each chunk advances together."""
        return self._count

    @alone
    def chunk(self, x: Any, rows: Any = None, *, last: Any = False) -> Any:
        """Takes the next steps of all rows, or of some; returns the outputs that are ready.

        Args:
            x: A `Ragged`, whose sequences may have different numbers of steps and also none, an array [rows,
                time, features...], or a structure of these.
            rows: The rows that take the steps: an index, indices or a mask. The others wait. All by default.
            last: Whether these are the last steps of their sequences. Then all outputs that are left are
                returned, and the rows begin anew.

        Returns:
            The outputs, in the structure of the model's. Those with a value per step are Raggeds for a
            `Ragged`, and arrays [rows, ready, features...] for an array. One that a sequence has once, as a
            last output, is [rows, features...], of the steps that are ready.

        Raises:
            InputError: For steps that do not fit the model or the rows; for an array, if not all rows have
                the same number of outputs ready; and for a model that needs a whole sequence, at the first
                chunk.

        >>> import stepnet as sn
        >>> pairs = sn.Graph(lambda x, params: sn.max_pool1d(x, 2))
        >>> stream = pairs.stream_chunks(rows=2)
        >>> stream.chunk(sn.Ragged.from_list([[1.0, 5.0, 2.0], [4.0]])).to_list()
        [array([5.]), array([], dtype=float64)]
        >>> stream.chunk(sn.Ragged.from_list([[3.0], [3.0]])).to_list()
        [array([3.]), array([4.])]
        """
        ends = flag(last, "last")
        chosen = np.arange(self._count) if rows is None else chosen_once(rows, self._count)
        self.programs.check_model()
        is_ragged, state, given = isinstance(x, Ragged), self._rows, self._as_before(x)
        if state is None or given is None:
            batch = Batch.of(
                arranged_as(x, self.programs.inputs), None, False, self.programs.own_axes
            ).end_to_end()
            self._check_count(batch.count, chosen, rows)
            is_ragged, state = isinstance(batch.like, Ragged), self._begun(batch)
            given = [WaitingSteps(array, batch.positions.lengths) for array in batch.arrays]
        else:
            self._check_count(len(given[0].lengths), chosen, rows)
        before = state.kept if rows is None else kept_of(state.kept, chosen)
        taken = before[TAKEN] + given[0].lengths
        own = {name: before[name] for name in state.statics}
        statics = [*own.values()]
        results, now = state.model.run([*given, *statics], before, Chunk(taken, ends))
        outputs = [output_of(result, is_ragged) for result in results]
        now |= own
        now[TAKEN] = taken
        if ends:
            now = state.begin(statics, len(chosen))
        kept = now if rows is None else kept_with(state.kept, chosen, now)
        self._rows = ChunkRows(state.program, state.model, kept)
        output = state.program.output
        return outputs[0] if isinstance(output, int) else rebuild(output, outputs)

    @alone
    def add(self, rows: Any = 1, initial: Any = None, statics: Any = None) -> Array:
        """Adds rows after the others; returns their indices.

        Args:
            rows: The number of rows to add.
            initial: The state that they go on from, as `state` returns it; by default they begin anew.
            statics: Values that each of them has once, [rows, features...].

        Raises:
            InputError: For arguments that do not fit; with `initial`, also before the inputs of the graph are
                known, by its first call or chunk or by `inputs=`.

        >>> import stepnet as sn
        >>> stream = sn.Graph(lambda x, params: sn.max_pool1d(x, 2)).stream_chunks(rows=1)
        >>> stream.add(rows=2).tolist(), stream.rows
        ([1, 2], 3)
        """
        count = checked_integer(rows, ROWS_ARE, 0, MOST_ROWS - self._count)
        given, own, specs = Statics.of(copied(statics), count), self._statics, self._static_specs
        if self._count or self._rows is not None:
            if (given.specs is None) != (specs is None):
                raise InputError(f"the rows of this stream have {'no ' * (specs is None)}statics")
            if (skeleton(given.specs), leaves(given.specs)) != (skeleton(specs), leaves(specs)):
                raise InputError(f"the statics are {given.specs}; those of the stream are {specs}")
        if initial is not None or self._has_memory:
            is_first = self._rows is None and not self._count
            state = self._known(given.specs if is_first else specs)
            new = self._begins(state, initial, given.arrays, count)
            self._rows = replace(state, kept=new if is_first else kept_and(state.kept, new))
        else:
            pairs = zip(own.arrays, given.arrays, strict=True) if self._count else ()
            arrays = [np.concatenate(pair) for pair in pairs] if self._count else given.arrays
            self._statics = Statics(given.specs, arrays, {})
        self._count += count
        return np.arange(self._count - count, self._count)

    @alone
    def drop(self, rows: Any) -> None:
        """Removes rows. The others keep their order, and their indices close up.

        Args:
            rows: The rows to remove: an index, indices or a mask.

        Raises:
            InputError: For rows that do not exist. Also for a stream that goes on from a state, before the
                inputs of the graph are known.

        >>> import stepnet as sn
        >>> stream = sn.Graph(lambda x, params: sn.max_pool1d(x, 2)).stream_chunks(rows=3)
        >>> stream.drop(1)
        >>> stream.rows
        2
        """
        left = np.delete(np.arange(self._count), chosen_once(rows, self._count))
        if self._has_memory:
            state = self._known(self._static_specs)
            self._rows = replace(state, kept=kept_of(state.kept, left))
        else:
            arrays = [array[left] for array in self._statics.arrays]
            self._statics = Statics(self._statics.specs, arrays, {})
        self._count = len(left)

    @alone
    def reset(self, rows: Any = None, initial: Any = None) -> None:
        """Restarts all rows, or some, without their outputs that are left. Statics stay.

        Args:
            rows: The rows to restart: an index, indices or a mask. All by default.
            initial: The state that they go on from, as `state` returns it; by default they begin anew.

        Raises:
            InputError: For rows that do not exist, and for a state that does not fit. Also for a stream that
                goes on from a state, and for `initial`, before the inputs of the graph are known.

        >>> import stepnet as sn
        >>> stream = sn.Graph(lambda x, params: sn.max_pool1d(x, 2)).stream_chunks()
        >>> stream.chunk(np.float32([[[1], [5], [9]]])).tolist()
        [[[5.0]]]
        >>> stream.reset()
        >>> stream.chunk(np.float32([[[1], [2]]])).tolist()
        [[[2.0]]]
        """
        chosen = np.arange(self._count) if rows is None else chosen_once(rows, self._count)
        if initial is not None or self._has_memory:
            state = self._known(self._static_specs)
            statics = [state.kept[name][chosen] for name in state.statics]
            begun = self._begins(state, initial, statics, len(chosen))
            self._rows = replace(state, kept=kept_with(state.kept, chosen, begun))

    @alone
    def reorder(self, rows: Any) -> None:
        """Moves the states of rows: row i continues from the state of row rows[i]. Statics do not move.

        Args:
            rows: An index for each row of the stream. The same index may come several times, or not at all.

        Raises:
            InputError: For another number of indices, and for an index of no row. Also for a stream that goes
                on from a state, before the inputs of the graph are known.

        >>> import stepnet as sn
        >>> stream = sn.Graph(lambda x, params: sn.max_pool1d(x, 2)).stream_chunks(rows=2)
        >>> stream.chunk(np.float32([[[1]], [[9]]])).shape
        (2, 0, 1)
        >>> stream.reorder([1, 1])
        >>> stream.chunk(np.float32([[[5]], [[5]]])).tolist()
        [[[9.0]], [[9.0]]]
        """
        order = sources(rows, self._count)
        if self._has_memory:
            state = self._known(self._static_specs)
            own = {name: state.kept[name] for name in state.statics}
            self._rows = replace(state, kept=kept_of(state.kept, order) | own)

    @property
    def state(self) -> dict[str, Array]:
        """The memory of the rows between chunks, without their statics: a dict of arrays by name, copies.

        A stream of the same model goes on from it with the same bits, by `initial=`. Besides memories it has
        the steps that later outputs read, and the number of steps that each row has had, "taken".

        Raises:
            InputError: Before the inputs of the graph are known, by its first call or chunk or by `inputs=`.

        >>> import stepnet as sn
        >>> pairs = sn.Graph(lambda x, params: sn.max_pool1d(x, 2))
        >>> stream = pairs.stream_chunks()
        >>> stream.chunk(np.float32([[[9]]])).shape
        (1, 0, 1)
        >>> pairs.stream_chunks(initial=stream.state).chunk(np.float32([[[5]]])).tolist()
        [[[9.0]]]
        """
        return self._known(self._static_specs).state()

    @alone
    def save(self, path: str | PathLike[str], rows: Any = None, *, force: Any = False) -> None:
        """Writes rows to a .safetensors file: what was kept of earlier steps, statics, and digests.

        Args:
            path: The file, which appears when it is complete.
            rows: The rows to write, in this order: an index, indices or a mask. All by default.
            force: Whether to replace an existing file.

        Raises:
            FileError: If the file exists, unless `force`, or cannot be written.
            InputError: For rows that do not exist, and before the inputs of the graph are known.
        """
        state = self._known(self._static_specs)
        chosen = np.arange(self._count) if rows is None else chosen_once(rows, self._count)
        described = {
            "format": FORMAT,
            "version": VERSION,
            "stepnet": __version__,
            "model": self._digest(state),
        }
        safetensors.write(
            file_path(path), arrays_of(kept_of(state.kept, chosen)), flag(force, "force"), described
        )

    @alone
    def load(self, path: str | PathLike[str]) -> Array:
        """Adds the rows of a file that `save` wrote; returns their indices. They go on with the same bits.

        Args:
            path: The file.

        Raises:
            FileError: For a file that is damaged, and for one of another model, of other parameters, or of
                inputs of other features or dtypes. The stream is then as it was.
            InputError: Before the inputs of the graph are known, by its first call or chunk or by `inputs=`.
        """
        state = self._known(self._static_specs)
        arrays, metadata = safetensors.read_described(file_path(path))
        if (metadata.get("format"), metadata.get("version")) != (FORMAT, VERSION):
            raise FileError(f"{path}: this is no saved stream of chunks, which ChunkStream.save writes")
        if metadata.get("model") != self._digest(state):
            raise FileError(
                f"{path}: it was saved from another model, with other parameters, or from inputs of other "
                "features or dtypes; load it with the model that it was saved from"
            )
        new = state.read(arrays, f"{path}")
        count = len(new[TAKEN])
        if count > MOST_ROWS - self._count:
            raise InputError(f"{path} has {count} rows; with {self._count} there are at most {MOST_ROWS}")
        self._rows = replace(state, kept=kept_and(state.kept, new) if self._count else new)
        self._count += count
        return np.arange(self._count - count, self._count)

    # ---- parts of the methods

    @property
    def _has_memory(self) -> bool:
        """True if rows may have different states: a chunk was taken, or they began with given states."""
        return self._rows is not None or self._initial is not None

    @property
    def _static_specs(self) -> Any:
        """The `Spec`s of the statics in their structure; None without statics. A stream that has no rows yet
        takes those of the latest call of the graph.
        """
        if self._rows is not None:
            return self._rows.program.traced.statics
        latest = self.programs.latest
        return self._statics.specs if self._count or latest is None else latest.traced.statics

    def _check_count(self, count: int, chosen: Array, rows: Any) -> None:
        """Raises `InputError` unless there are steps of as many sequences, `count`, as rows take them.

        chosen: the indices of these rows. rows: the argument that names them; None for all.
        """
        if count != len(chosen):
            has = f"the stream has {len(chosen)} rows" if rows is None else f"rows= names {len(chosen)}"
            raise InputError(f"there are steps of {count} sequences; {has}")
        if not len(chosen):
            raise InputError("the stream has no rows: add some")

    def _as_before(self, x: Any) -> list[WaitingSteps] | None:
        """Returns the steps of a chunk of one input with the features and the dtype of earlier chunks; None
        for one that is to be checked.
        """
        spec = None if self._rows is None else self._rows.program.traced.inputs
        if not isinstance(spec, Spec) or spec.levels or spec.axis:
            return None
        if type(x) is Ragged and x.levels == 1:
            values, offsets = x.values, cast("Array", x.offsets[0])
        elif type(x) is np.ndarray and x.ndim > 1 and x.size:
            rows, steps, *features = x.shape
            values = x.reshape(rows * steps, *features)
            offsets = cast("Array", np.arange(0, rows * steps + 1, steps))
        else:
            return None
        is_known = values.dtype == spec.dtype and values.shape[1:] == spec.shape
        if not is_known or not is_plain(values):
            return None
        return [WaitingSteps.at(values, offsets[1:] - offsets[:-1], offsets)]

    def _begun(self, batch: Batch) -> ChunkRows:
        """Returns the rows, made at the first chunk; raises `InputError` for steps of another kind than those
        of earlier chunks. batch: the steps of the chunk.
        """
        program = self.programs.program_of(batch.specs, self._static_specs)
        if self._rows is None:
            return self._made(program, self._statics.arrays)
        if program is not self._rows.program:
            known = self._rows.program.traced.inputs
            raise InputError(
                f"the inputs are {skeleton(batch.specs)} of {specs_text(batch.specs)}; those of this "
                f"stream are {skeleton(known)} of {specs_text(known)}"
            )
        return self._rows

    def _made(self, program: GraphProgram, statics: list[Array]) -> ChunkRows:
        """Returns the rows before the first chunk; raises `InputError` for a model without such a stream.
        program: the traced model. statics: the values that each row has once.
        """
        model = ChunkModel.of(program.schedule_for(self.engine), program.params, self.engine)
        made = ChunkRows(program, model, {})
        return replace(made, kept=self._begins(made, self._initial, statics, self._count))

    def _begins(self, state: ChunkRows, initial: Any, statics: list[Array], rows: int) -> Kept:
        """Returns the rows of a stream that begins anew, or that goes on from a state.

        state: the rows of the stream. initial: the state that the rows go on from; None for none. statics:
        the values that each row has once. rows: their number.
        """
        if initial is None:
            return state.begin(statics, rows)
        return state.from_state(initial, statics, rows)

    def _known(self, statics: Any) -> ChunkRows:
        """Returns the rows of the stream.

        Before the first chunk they are made for the inputs of the latest call of the graph, or else for the
        inputs that the graph was made with. Raises `InputError` if neither is known, or if `initial=` does
        not fit these inputs.

        statics: the `Spec`s of the statics in their structure; None without statics.
        """
        if self._rows is not None:
            return self._rows
        if self.programs.latest is None:
            raise InputError(UNKNOWN)
        inputs = self.programs.latest.traced.inputs
        program = self.programs.program_of(inputs, statics)
        try:
            return self._made(program, self._statics.arrays)
        except InputError as error:
            if self._initial is None:
                raise
            known = f"{skeleton(inputs)} of {specs_text(inputs)}"
            raise InputError(
                f"{error}; the inputs are taken to be {known}, as no chunk was taken yet"
            ) from None

    def _digest(self, state: ChunkRows) -> str:
        """Returns a digest of the model, its parameters and the kinds of its inputs."""
        program = state.program
        kinds = skeleton(program.traced.inputs), *leaves(program.traced.inputs)
        return digest(program.net, kinds, *map(Literal, program.params))

    def __reduce__(self) -> Any:
        """Raises `InputError`, as a stream cannot be copied or pickled."""
        raise InputError("a stream is not copied or pickled: save it, and load the file into another one")


def output_of(result: Any, is_ragged: bool) -> Any:
    """Returns a result in the layout of the inputs; raises `InputError` for an array in which the rows
    would have different numbers of steps.

    result: the steps that are ready, or what each row has once. is_ragged: whether the inputs are Raggeds.
    """
    if not isinstance(result, WaitingSteps):
        return np.array(result)
    values = np.array(result.values)
    if is_ragged:
        return Ragged(values, (result.offsets,))
    counts = result.lengths.tolist()
    least, most = min(counts), max(counts)
    if least != most:
        raise InputError(
            f"the rows have {least} to {most} outputs ready, as they are at different steps: give the "
            "steps as a Ragged, sn.Ragged.from_padded(x)"
        )
    return values.reshape(len(counts), most, *values.shape[1:])


def specs_text(specs: Any) -> str:
    """Returns the features and dtypes of inputs as text for messages."""
    return ", ".join(f"{name} {s.dtype}{list(s.shape)}".strip() for name, s in titled_leaves(specs, ""))
