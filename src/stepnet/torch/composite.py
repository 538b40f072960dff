"""The nodes of a module's graph that ATen has no operation for: recurrent layers, and packed sequences.

While a module is traced, its layers of torch.nn and of stepnet.torch add a node `stepnet::layer` each, and
PyTorch's functions that pack and pad sequences add nodes too. PyTorch never runs these operators: it only
asks them for the shapes of results.
"""

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import field
from typing import Any

from stepnet.compiler.trace.traced import Traced
from stepnet.compiler.values.records import dataclass
from stepnet.errors import StepError
from stepnet.importers.aten.cells import memory_of
from stepnet.importers.aten.module_sequences import NO_STEPS
from stepnet.model.layers import Layer
from stepnet.torch.codecs import codec_forward
from stepnet.torch.convolutions import (
    conv1d,
    conv_transpose1d,
    interleaved,
    interpolated,
    padded_steps,
    part_of_steps,
    pooled_windows,
)
from stepnet.torch.layers import LayerForward as Ours
from stepnet.torch.layers import in_form, sizes_of
from stepnet.torch.lines import line_of_call
from stepnet.torch.module_operators import define
from stepnet.torch.norms import group_norm, instance_norm
from stepnet.torch.pytorch import pytorch
from stepnet.torch.reads import computed_weights
from stepnet.torch.recurrence import Recurrence
from stepnet.torch.rewritten import DROPOUTS, REWRITTEN, refused
from stepnet.torch.sequences import PackedSequence

torch: Any = pytorch("torch")

# ---- recurrent layers --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LayerBuild:
    """Recipe for a recurrent layer of a traced module, by which the graph's evaluation builds it in a net.

    layer: makes the layer from its parameters as values of the net. memory: the structure of its memory.
    """

    layer: Callable[[Sequence[Traced]], Layer]
    memory: Any


@dataclass
class TracedLayers:
    """The recurrent layers that were called while a module is traced.

    rows: the symbolic number of sequences. builds: how to build each layer, by the number in its graph node.
    path: the names of the modules in the current calls, outermost first.
    """

    rows: Any = None
    builds: list[LayerBuild] = field(default_factory=list[LayerBuild])
    path: list[str] = field(default_factory=list[str])

    def line(self) -> str:
        """Returns the user's line that is being traced, and the module that it is in, for messages."""
        return line_of_call() + (f"\n  in module {self.path[-1]}" if self.path else "")

    def node(self, build: LayerBuild, *operands: Any) -> list[Any]:
        """Adds a node for a recurrent layer to the graph that PyTorch traces, and returns its results.

        build: how to build the layer in a net; appended to `builds`, whose index the node has. operands: the
        further arguments of the operator `stepnet::layer`.
        """
        self.builds.append(build)
        return list(torch.ops.stepnet.layer(len(self.builds) - 1, *operands))

    @contextmanager
    def standing_in(self, module: Any) -> Generator[None]:
        """Context manager for a trace, in which a module's recurrent layers add graph nodes instead of
        running, and `self.path` lists the modules that are being called. At its end the module is as before.
        """
        members: list[tuple[str, Any]] = list(module.named_modules())
        changed, hooks = list[tuple[Any, str]](), list[Any]()
        weights = [(member, computed_weights(member)) for _, member in members]
        try:
            for _, member in members:
                method = method_of(member)
                if method is not None:
                    # Before the hooks are added, which would count as a change of a Recurrence's step.
                    net = member.enter().net if isinstance(member, Recurrence) else None
                    changed.append((member, method))
                    member.__dict__[method] = getattr(Standing(self, member, net), method)
                elif (forward := codec_forward(member)) is not None:
                    changed.append((member, "forward"))
                    member.__dict__["forward"] = forward
            for name, member in members:
                if name:
                    hooks += self.hooked(f"`{name}`, a {type(member).__name__}", member)
            yield
        finally:
            for member, method in changed:
                member.__dict__.pop(method, None)
            for hook in hooks:
                hook.remove()
            for member, own in weights:
                member.__dict__.update(own)

    def hooked(self, name: str, module: Any) -> list[Any]:
        """Registers hooks that keep `path` up to date when a module is called; returns them for removal.

        name: the text for the module in `path`, with its class.
        """

        def enter(*_: Any) -> None:
            """Adds the name of the module to the path of the current calls."""
            self.path.append(name)

        def leave(*_: Any) -> None:
            """Removes the name of the module from the path of the current calls."""
            self.path.pop()

        hooks = module.register_forward_pre_hook(enter), module.register_forward_hook(leave, always_call=True)
        return [*hooks]


KINDS: tuple[Any, ...] = (torch.nn.GRU, torch.nn.LSTM, torch.nn.RNN, Ours)
FORWARDS = tuple(kind.forward for kind in KINDS)


def method_of(module: Any) -> str | None:
    """Returns the name of the method that a trace replaces in a recurrent layer; None for other modules."""
    if isinstance(module, Recurrence):
        return "results"
    return "forward" if module.__class__.forward in FORWARDS and "forward" not in module.__dict__ else None


@dataclass(frozen=True)
class Standing:
    """Stand-in for a recurrent layer while the model that contains it is traced: its methods add a node to
    the graph.

    layers: the layers of that trace.
    module: the recurrent layer.
    net: the net of a `Recurrence`; None for a layer of torch.nn.
    """

    layers: TracedLayers
    module: Any
    net: Any

    def forward(self, input: Any, hx: Any = None) -> Any:  # noqa: A002 - PyTorch's names
        """Replaces the forward of a layer of torch.nn in a trace: checks the call and adds a graph node,
        whose results it returns.
        input, hx: the sequences and the initial states, as that forward takes them.
        """
        module, packed = self.module, isinstance(input, PackedSequence)
        data = input.data if packed else input
        weights = [getattr(module, name) for name in module._flat_weights_names]
        self.check(data, packed)
        sizes = sizes_of(module, weights[0].dtype)
        kinds = [sizes.output, sizes.hidden][: 2 if module.mode == "LSTM" else 1]
        count = sizes.layers * sizes.directions
        given = [] if hx is None else list(hx) if module.mode == "LSTM" else [hx]
        order, back = (input.sorted_indices, input.unsorted_indices) if packed else (None, None)
        given = given if order is None else [state.index_select(1, order) for state in given]
        states = [state.select(0, place) for place in range(count) for state in given]
        like = [data.new_empty(*data.shape[:-1], sizes.output * sizes.directions)]
        like += [data.new_empty(self.layers.rows, size) for _ in range(count) for size in kinds]
        time = NO_STEPS if packed else 1 if module.batch_first else 0
        build = LayerBuild(sizes.of, memory_of(sizes.recurrences))
        outputs, *last = self.layers.node(build, time, data, states, [], weights, like)
        final = [torch.stack(last[kind :: len(kinds)]) for kind in range(len(kinds))]
        final = final if back is None else [state.index_select(1, back) for state in final]
        return input._replace(data=outputs) if packed else outputs, in_form(module, final)

    def check(self, data: Any, packed: bool) -> None:
        """Raises `StepError` for a call that a traced model cannot contain: with dropout between layers, or
        on a tensor without an axis of sequences. data: the input, or the data of a packed one. packed:
        whether the input is a `PackedSequence`.
        """
        module = self.module
        if module.training and module.dropout and module.num_layers > 1:
            raise StepError(RANDOM)
        if not packed and data.dim() != 3:
            raise StepError(
                f"{type(module).__name__} is called with {data.dim()} axes; in a model it runs over a batch, "
                "[batch, time, features] or [time, batch, features]"
            )

    def results(
        self, sequences: Any, states: list[Any], statics: list[Any], graph: bool, found: None
    ) -> list[Any]:
        """Replaces `Recurrence.results` in a trace: adds a graph node. Returns the outputs, then the last
        memories, as tensors of the graph.

        sequences: the sequences of the call; a `PackedSequence` raises `StepError`. states, statics: the
            initial memories (empty for zeros) and the values for all steps, a tensor for each. graph, found:
            are not read.
        """
        module, data = self.module, sequences.data
        if sequences.place.tensors:
            raise StepError("a Recurrence runs over tensors in a model, not over a PackedSequence")
        tensors = module.tensors
        lead = {1: (self.layers.rows,), 2: data.shape[:2]}
        like = [
            data.new_empty(*lead[len(type_.extent)], *type_.shape, dtype=getattr(torch, type_.dtype))
            for type_ in self.net.results
        ]

        def layer(params: Sequence[Traced]) -> Layer:
            """Builds the recurrence in a net, with parameters that are values of the net."""
            rnn = module.rnn(list(module.tensors.values()))
            return rnn.with_params(dict(zip(tensors, params, strict=True)) or None)

        time = 1 if module.batch_first else 0
        build = LayerBuild(layer, module._example[1])
        return self.layers.node(build, time, data, states, statics, list(tensors.values()), like)


# ---- packed sequences --------------------------------------------------------------------------------------


def packed(x: Any, lengths: Any, batch_first: bool) -> Any:
    """Replaces `torch._pack_padded_sequence` in a trace: adds a graph node, and returns its results, the
    steps without padding and the number of sequences at each step.

    x, lengths: the padded steps, and the lengths of the sequences. batch_first: whether x is [batch, time,
        ...].
    """
    return tuple(torch.ops.stepnet.packed(x, lengths, int(batch_first)))


def padded(data: Any, counts: Any, batch_first: bool, value: float, total: Any) -> Any:
    """Replaces `torch._pad_packed_sequence` in a trace: adds a graph node, and returns its results, the
    padded steps and the lengths.

    data, counts: the steps and batch sizes of a `PackedSequence`. batch_first: whether the result is [batch,
        time, ...]. value: the number to pad with; ignored, as a net has no padding. total: `total_length`; a
        constant is refused.
    """
    if isinstance(total, int):
        raise StepError(
            "pad_packed_sequence has a total_length that is a fixed number: give x.size(1) instead"
        )
    rows = data.shape[0] // counts.shape[0]  # `packed_shapes` makes the data of rows x steps, not of fewer
    return tuple(torch.ops.stepnet.padded(data, counts, rows, int(batch_first)))


def sorted_rows(function: Any) -> Callable[..., Any]:
    """Wraps torch.sort or torch.argsort (`function`) for a trace: where it sorts one number per sequence,
    such as the lengths, it adds a graph node, whose result stands for a permutation of the sequences. Other
    sorts are unchanged.
    """

    def rule(x: Any, *arguments: Any, **options: Any) -> Any:
        """Replaces a sort in a trace by `stepnet::sorted` if x has one number per sequence."""
        if x.dim() != 1 or isinstance(x.shape[0], int):
            return function(x, *arguments, **options)
        values, order = torch.ops.stepnet.sorted(x)
        return order if function.__name__ == "argsort" else torch.return_types.sort((values, order))

    return rule


def pooled(function: Any, reduced: Callable[[Any], Any]) -> Callable[..., Any]:
    """Wraps a pooling function of PyTorch for a trace: pooling over all steps of a sequence calls `reduced`,
    the mean or the maximum over the last axis; pooling over windows of steps adds a graph node.
    """
    adaptive = function.__name__.startswith("adaptive")

    def rule(
        x: Any,
        size: Any,
        stride: Any = None,
        padding: Any = 0,
        *others: Any,
        return_indices: bool = False,
        **named: Any,
    ) -> Any:
        """Replaces a pooling of PyTorch in the trace of a module: pools over all steps, or over windows of
        them; raises `StepError` for indices, and for adaptive outputs of another size. For all steps the
        stride is not read: there is a single place for the kernel.
        """
        kernel = str(size).strip("()[],")  # a number, or a symbol, perhaps in a tuple
        whole = kernel == ("1" if adaptive else str(x.shape[-1]))
        if return_indices or (adaptive and not whole) or not (whole or kernel.isdecimal()):
            raise StepError(
                f"in a model, {function.__name__} pools over windows of steps, or over all steps of a "
                "sequence: give it a number, the kernel x.size(-1), or an adaptive output of size 1, and ask "
                "for no indices"
            )
        if whole and padding in (0, (0,)):
            return reduced(x)
        return pooled_windows(function.__name__, x, size, stride, padding, *others, **named)

    return rule


def unbound(x: Any, dim: int = 0) -> Any:
    """Replaces torch.unbind in the trace of a module: splits x along the axis `dim`, which must be one of
    features; raises `StepError` for an axis of sequences or steps.
    """
    if not isinstance(x.shape[dim], int):
        raise StepError(
            "a model cannot take sequences or steps apart, nor loop over a tensor of them, nor make a list "
            "of lengths: pack_padded_sequence takes lengths.cpu()"
        )
    return torch.unbind(x, dim)


def mean(x: Any) -> Any:
    """Computes the mean over the last axis, which stays with size one: a pooling over all steps."""
    return x.mean(-1, keepdim=True)


def largest(x: Any) -> Any:
    """Computes the maximum over the last axis, which stays with size one: a pooling over all steps."""
    return x.amax(-1, keepdim=True)


def attention(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """Replaces `torch.nn.functional.scaled_dot_product_attention` in a trace: adds a graph node, and returns
    its result. The other arguments are PyTorch's; raises `StepError` for dropout. enable_gqa: not used, as
    fewer heads of keys are seen by their number.
    """
    if dropout_p > 0:
        raise StepError(RANDOM)
    return torch.ops.stepnet.attended(query, key, value, attn_mask, is_causal, scale)


CONVOLUTION = "a convolution over two or three axes is no operation of a model: run it before the graph"
RANDOM = "dropout draws random numbers: call .eval() on the module"


def dropped(x: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
    """Replaces dropout in the trace of a module: returns x in evaluation; raises `StepError` in training, if
    p is not 0. `inplace` is ignored, as the result is x itself.
    """
    if training and p > 0:
        raise StepError(RANDOM)
    return x


OF_A_CLASS = refused("a subclass of a recurrent layer with a forward of its own cannot be a layer of a graph")

FUNCTIONS: dict[Any, Callable[..., Any]] = {
    **REWRITTEN,
    **{getattr(torch, name): OF_A_CLASS for name in ("gru", "lstm", "rnn_tanh", "rnn_relu")},
    torch._pack_padded_sequence: packed,
    torch._pad_packed_sequence: padded,
    torch.unbind: unbound,
    torch.Tensor.unbind: unbound,
    torch.dropout: dropped,
    **{getattr(torch.nn.functional, name): dropped for name in DROPOUTS},
    torch.conv1d: conv1d,
    torch.conv_transpose1d: conv_transpose1d,
    torch.Tensor.__getitem__: part_of_steps,
    torch.nn.functional.interpolate: interpolated,
    torch.repeat_interleave: interleaved,
    torch.Tensor.repeat_interleave: interleaved,
    torch.nn.functional.pad: padded_steps,
    torch.nn.functional.group_norm: group_norm,
    torch.group_norm: group_norm,
    torch.nn.functional.instance_norm: instance_norm(group_norm),
    torch.nn.functional.scaled_dot_product_attention: attention,
    **{getattr(torch, f"conv{count}d"): refused(CONVOLUTION) for count in (2, 3)},
    **{
        function: pooled(function, reduced)
        for reduced, names in {
            mean: ("adaptive_avg_pool1d", "avg_pool1d"),
            largest: ("adaptive_max_pool1d", "max_pool1d"),
        }.items()
        for name in names
        for function in {getattr(torch, name), getattr(torch.nn.functional, name)}
    },
    **{
        getattr(owner, name): sorted_rows(getattr(owner, name))
        for owner in (torch, torch.Tensor)
        for name in ("sort", "argsort")
    },
}
"""PyTorch's functions that a module's trace replaces, each with its replacement."""

define()
