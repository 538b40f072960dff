"""Operators in graphs of modules, which stepnet evaluates: their schemas, and the shapes of results."""

from collections.abc import Callable, Sequence
from typing import Any

from stepnet.errors import StepError
from stepnet.torch.convolutions import (
    convolved_shapes,
    cut_shapes,
    extended_shapes,
    pooled_shapes,
    repeated_shapes,
    transposed_shapes,
)
from stepnet.torch.norms import normed_shapes
from stepnet.torch.pytorch import pytorch

library: Any = pytorch("torch.library")
torch: Any = pytorch("torch")


def packed_shapes(x: Any, lengths: Any, time: int) -> Any:
    """Returns empty tensors like the results of the operator `packed`: steps without padding, batch sizes. x,
    lengths: the padded steps, and the lengths of the sequences. time: the axis of the steps in x.
    """
    total = x.shape[0] * x.shape[1]
    return x.new_empty(total, *x.shape[2:]), lengths.new_empty(x.shape[time])


def padded_shapes(data: Any, counts: Any, rows: Any, time: int) -> Any:
    """Returns empty tensors like the results of the operator `padded`: padded steps, and lengths.

    data, counts: steps without padding, and batch sizes. rows: the number of sequences. time: the axis of the
        steps in the result, 0 or 1.
    """
    lead = (rows, counts.shape[0]) if time else (counts.shape[0], rows)
    return data.new_empty(*lead, *data.shape[1:]), counts.new_empty(rows)


def sorted_shapes(x: Any) -> Any:
    """Returns empty tensors like the results of the operator `sorted` in a trace: values, and positions."""
    return torch.empty_like(x), torch.empty_like(x, dtype=torch.int64)


def attended_shapes(query: Any, key: Any, value: Any, *_: Any) -> Any:
    """Returns an empty tensor like the result of the operator `attended`, for traces."""
    return query.new_empty(*query.shape[:-1], value.shape[-1])


def layer_shapes(
    number: int, time: int, data: Any, states: Any, statics: Any, weights: Any, like: Sequence[Any]
) -> Any:
    """Returns empty tensors like the results of the operator `layer`, which have the shapes of `like`, for
    traces.

    number, time: the position of the layer in `TracedLayers.builds`, and the axis of the steps in `data`.
    states, statics, weights: the layer's tensors. Only `like` is read, which has a tensor for each result.
    """
    return [torch.empty_like(tensor) for tensor in like]


def never(*arguments: Any) -> Any:
    """Raises `StepError`: operators in graphs of modules are evaluated by stepnet, and not run by PyTorch."""
    raise StepError("this operator is in graphs that stepnet makes of modules, and does not run")


OPERATORS: dict[str, Callable[..., Any]] = {
    "packed(Tensor x, Tensor lengths, int time) -> (Tensor, Tensor)": packed_shapes,
    "padded(Tensor data, Tensor counts, SymInt rows, int time) -> (Tensor, Tensor)": padded_shapes,
    "sorted(Tensor x) -> (Tensor, Tensor)": sorted_shapes,
    "convolved(Tensor x, Tensor weight, Tensor? bias, int[] window, int groups) -> Tensor": convolved_shapes,
    "convolved_transposed(Tensor x, Tensor weight, Tensor? bias, int[] numbers, int groups) -> Tensor": (
        transposed_shapes
    ),
    "pooled(Tensor x, str how, int[] window) -> Tensor": pooled_shapes,
    "extended(Tensor x, int before, int after, str how) -> Tensor": extended_shapes,
    "cut(Tensor x, int dim, int before, int after, int step) -> Tensor": cut_shapes,
    "repeated(Tensor x, int dim, int count) -> Tensor": repeated_shapes,
    "group_normed(Tensor input, int num_groups, Tensor? weight, Tensor? bias, float eps) -> Tensor": (
        normed_shapes
    ),
    "attended(Tensor query, Tensor key, Tensor value, Tensor? attn_mask, bool is_causal, float? scale) "
    "-> Tensor": attended_shapes,
    "layer(int number, int time, Tensor data, Tensor[] states, Tensor[] statics, Tensor[] weights, "
    "Tensor[] like) -> Tensor[]": layer_shapes,
}
"""The operators in graphs of modules, by schema, each with the function that returns empty results."""


def define() -> None:
    """Registers the operators of `OPERATORS` with PyTorch, so that traces can add them to graphs. Each has a
    function for the shapes of its results; running one raises an error, as graphs are converted and not run.
    """
    for schema, shapes in OPERATORS.items():
        name, arguments = schema.split("(", 1)
        made = library.custom_op(f"stepnet::{name}", never, mutates_args=(), schema=f"({arguments}")
        made.register_fake(shapes)
