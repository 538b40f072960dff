"""Explanations of recurrent modules of PyTorch: the plan of a module, what runs it on a GPU, and why."""

from collections.abc import Callable
from typing import Any

from stepnet.errors import InputError
from stepnet.explain.document import FACTS, DocumentTable, TitledSection
from stepnet.explain.plan import checked_size
from stepnet.explain.text import text
from stepnet.model.model import Model
from stepnet.model.program import Asked
from stepnet.torch.cudnn import CELLS, known_layer
from stepnet.torch.layers import LayerForward, sizes_of
from stepnet.torch.meta import parameters_with_numbers
from stepnet.torch.pytorch import pytorch
from stepnet.torch.recurrence import Recurrence
from stepnet.torch.scan import Scan
from stepnet.torch.sequences import dtypes_refused
from stepnet.torch.steps import CellForward, sizes_of_cell
from stepnet.torch.trace import described

torch: Any = pytorch("torch")
TARGET = 'the engine "cuda", stepnet\'s own kernels'
Rows = tuple[tuple[str, str], ...]


def explain(
    module: Any, engine: Asked | None = None, *, rows: int | None = None, steps: int | None = None
) -> str:
    """Explains a recurrent module of stepnet.torch: what runs it on a GPU, and why, then its plan as
    `RNN.explain` shows it. For another module that holds such modules, such as an accelerated model, explains
    for each what runs it on a GPU.

    Args:
        module: A layer, a cell, a `Recurrence`, a `Scan`, or a module that holds some.
        engine: An engine, or several in order of preference; by default that of the module.
        rows: The number of sequences of a call, as for `RNN.explain`.
        steps: The number of steps of such a call.

    Raises:
        InputError: For what is no module or holds no recurrent one, for parameters of a dtype that stepnet
            does not run, and as `RNN.explain` does.

    >>> import torch, stepnet.torch
    >>> layers = stepnet.torch.GRU(3, 64), stepnet.torch.GRU(64, 512)
    >>> print(stepnet.torch.explain(torch.nn.Sequential(*layers)))
    0: GRU(3, 64), on a GPU
      one length  PyTorch: cuDNN is as fast for GRU and RNN in float32 of up to 128 units
                  (GRU of 64 and 128 units: 0.8 and 1.0 ms, where the target takes 1.7 and
                  1.8)
      lengths     the engine "cuda", stepnet's own kernels
    <BLANKLINE>
    1: GRU(64, 512), on a GPU
      always      the engine "cuda", stepnet's own kernels
    """
    if not isinstance(module, torch.nn.Module):
        raise InputError(f"explain takes a module of PyTorch, not {described(module)}")
    kind = kind_of(module)
    if kind is not None:
        model, order = model_of(module, kind), module.engine if engine is None else engine
        plan = model.explained(model.engine_order(order), checked_size(rows, steps))
        return text([section_of("on a GPU", module), *plan])
    named: dict[str, Any] = dict(module.named_modules())
    found = {name: part for name, part in named.items() if kind_of(part) is not None}
    if not found:
        raise InputError(
            "the module holds no layer, cell, Recurrence or Scan of stepnet.torch: call "
            "stepnet.torch.accelerate(model) first"
        )
    return text(section_of(f"{name}: {title_of(part)}, on a GPU", part) for name, part in found.items())


def kind_of(module: Any) -> Callable[[Any], Model] | None:
    """Returns the function that makes a model of a recurrent module of stepnet; None for other modules."""
    return next((make for kind, make in MODELS.items() if isinstance(module, kind)), None)


def model_of(module: Any, make: Callable[[Any], Model]) -> Model:
    """Returns the model of a recurrent module; raises `InputError` for dtypes that stepnet does not run."""
    floats = (tensor for tensor in module.parameters() if tensor.is_floating_point())
    if (why := dtypes_refused(floats)) is not None:
        raise InputError(f"{type(module).__name__} cannot be explained: {why}")
    return make(module)


def of_recurrence(module: Any) -> Model:
    """Returns the model of a `Recurrence`, whose parameters may be on any device."""
    with parameters_with_numbers(module):
        return module.rnn(list(module.tensors.values()))


MODELS: dict[Any, Callable[[Any], Model]] = {
    LayerForward: lambda module: sizes_of(module, module.weight_hh_l0.dtype).recurrences,
    CellForward: lambda module: sizes_of_cell(module).recurrences,
    Recurrence: of_recurrence,
    Scan: lambda module: module.rnn,
}
"""The functions that make a model of a module, by its class."""


def title_of(module: Any) -> str:
    """Returns the class of a module, and the numbers of its units."""
    name = type(module).__name__
    sizes = getattr(module, "input_size", None), getattr(module, "hidden_size", None)
    return name if None in sizes else f"{name}({sizes[0]}, {sizes[1]})"


def section_of(title: str, module: Any) -> TitledSection:
    """Makes the section that says what runs a recurrent module on a GPU, and why."""
    return TitledSection(title, (DocumentTable(rows_of(module), FACTS, wraps=True),))


def rows_of(module: Any) -> Rows:
    """Returns rows of kinds of calls, each with the code that runs a recurrent module on a GPU then."""
    if module.engine != "auto":
        return (("always", f"the engine that was asked for, {module.engine!r}"),)
    if isinstance(module, CellForward):
        return (("always", f"PyTorch: {CELLS}"),)
    if module.checkpoint is not None:
        return (("always", "PyTorch: checkpoint= is for the CPU"),)
    if not isinstance(module, LayerForward):
        return (("always", TARGET),)
    layer: Any = module
    known = known_layer(layer, layer.weight_hh_l0.dtype, has_lengths=False)
    if known is None:
        return (("always", TARGET),)
    reason = f"PyTorch: cuDNN is as fast for {known} ({known.measured})"
    return ("one length", reason), ("lengths", TARGET)
