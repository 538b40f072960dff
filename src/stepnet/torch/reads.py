"""Finds the values that a step written with PyTorch reads besides its arguments and parameters
(`trace.reads`).

The parameters and buffers of a module are arguments of its trace. Its hooks and other attributes, and the
attributes of modules in it, are not: a trace keeps their values.
"""

from collections.abc import Sequence
from typing import Any

from stepnet.compiler.trace import reads
from stepnet.compiler.trace.read_sources import ReadSource, of_classes, of_mapping, package_of
from stepnet.compiler.trace.reads import Reads
from stepnet.errors import InputError, StepError
from stepnet.torch.pytorch import pytorch

torch: Any = pytorch("torch")
modules: Any = pytorch("torch.nn.modules.module")


def attributes_of(module: Any) -> dict[str, Any]:
    """Returns the attributes of a module by name: its `__dict__` itself, so that later changes are seen."""
    return module.__dict__


HOOKS = ("_forward_hooks", "_forward_pre_hooks")
KEPT = frozenset(attributes_of(torch.nn.Module())) - {"training", *HOOKS}
"""Attributes that PyTorch sets in every module."""
GLOBAL_HOOKS = ("_global_forward_hooks", "_global_forward_pre_hooks")
"""The hooks of all modules, in PyTorch's module of its class `Module`."""
NORMS: Any = (
    pytorch("torch.nn.utils.weight_norm").WeightNorm,
    pytorch("torch.nn.utils.spectral_norm").SpectralNorm,
)
"""The hooks, as PyTorch had them before its parametrizations, that compute a weight ahead of each call."""
KEPT_BY = {
    "torch.nn.modules.rnn": frozenset({"_flat_weights", "_flat_weight_refs", "_flat_weights_names"}),
    "stepnet.torch": frozenset(
        (
            *("_bound", "_runnable", "_refused", "_lowered", "_known_calls"),
            *("_kept", "_latest", "_name", "_stepnets_token"),
        )
    ),
}
"""Attributes that the modules of packages, and classes derived from them, use internally."""


def reads_of(step: Any, ignored: frozenset[str] = frozenset(), has_computed: bool = True) -> Reads:
    """Finds the values that a step reads besides its arguments, to notice when a trace of it is out of date.

    step: a module, whose parameters and buffers are left out, or a function.
    ignored: names of attributes of modules that are left out.
    has_computed: whether weights that hooks compute ahead of each call count, as of `computed_weights`. A
        trace of a step leaves others there, and is refused for it; that of a whole module puts them back.
    """
    module: bool = isinstance(step, torch.nn.Module)
    registered = {id(member) for member in step.modules()} if module else set[int]()

    def rule(value: Any) -> Sequence[ReadSource] | None:
        """Lists the `ReadSource`s (names, and a function that reads the values again) of a module: of its
        attributes, inner modules and methods, and, if the step does not contain it, of its tensors. Returns
        None for values that are not modules.
        """
        if not isinstance(value, torch.nn.Module):
            return None
        parts = [value._modules]
        if id(value) not in registered:
            parts += [value._parameters, value._buffers]  # not registered with the step
        left_out = ignored if has_computed else ignored.union(computed_weights(value))
        return [attributes(value, left_out), *map(of_mapping, parts), *of_classes(value)]

    return reads.reads_of(step, rule, "self" if module else "", global_settings())


def global_settings() -> list[ReadSource]:
    """Lists one `ReadSource` (names, and a function that reads the values again): the settings that PyTorch
    reads in every step, which are the hooks of all modules and the default dtype. It serves to notice
    changes.
    """
    hooks = [getattr(modules, kind) for kind in GLOBAL_HOOKS]
    names = [
        f"torch.nn.modules.module.{kind}[{key}]"
        for kind, known in zip(GLOBAL_HOOKS, hooks, strict=True)
        for key in known
    ]

    def now() -> list[Any]:
        """Returns the hooks of all modules and the default dtype as they are now."""
        return [hook for known in hooks for hook in known.values()] + [torch.get_default_dtype()]

    return [ReadSource((*names, "torch.get_default_dtype()"), now)]


def attributes(module: Any, ignored: frozenset[str]) -> ReadSource:
    """Makes the `ReadSource` of a module's attributes: their names, and a function that reads them again to
    notice changes.

    Attributes that PyTorch and stepnet use internally, and attributes with a name in `ignored`, are left out.
    """
    bases = [base.__module__ for base in type(module).__mro__]
    kept = [names for place, names in KEPT_BY.items() if any(base.startswith(place) for base in bases)]
    hidden = KEPT.union(ignored, *kept)
    known = package_of(type(module)) in ("torch", "stepnet")  # their private attributes are no settings

    def name(key: str) -> str | None:
        """Returns the name by which an attribute is recorded; None for one that is left out."""
        private = key in hidden or (known and key.startswith("_") and key not in HOOKS)
        return None if private else key

    return of_mapping(attributes_of(module), name)


def computed_weights(module: Any) -> dict[str, Any]:
    """Returns by name the attributes that weight_norm or spectral_norm computes before each call."""
    hooks = [hook for hook in module._forward_pre_hooks.values() if isinstance(hook, NORMS)]
    return {hook.name: module.__dict__[hook.name] for hook in hooks if hook.name in module.__dict__}


def check_others(found: Reads) -> None:
    """Raises `InputError` if a step reads a tensor that requires a gradient but is not one of its parameters.

    found: the values that the step reads, by name.
    """
    for name, value in found.values.items():
        if isinstance(value, torch.Tensor) and value.requires_grad:
            raise InputError(
                f"the step uses {name}, which requires a gradient and is not one of its parameters: "
                "give it with the parameters, or make it an attribute of the cell; .detach() it if "
                "it is a constant"
            )


class Unchanged:
    """Context for a trace, which raises `StepError` if the step changes a value that it reads."""

    def __init__(self, step: Any) -> None:
        """Records the values that the step reads before it is traced."""
        self.step, self.before = step, reads_of(step)

    def __enter__(self) -> None:
        """Enters the context."""

    def __exit__(self, kind: Any, *_: Any) -> None:
        """Raises `StepError` if the values that the step reads besides its arguments have changed since the
        block began, unless the block has failed by an error (of type `kind`).
        """
        if kind is None and (names := self.before.changes(reads_of(self.step))):
            raise StepError(
                f"the step changes {names} as it runs, which a recurrence would do once and not at every "
                "step: make it a memory or an output, or take the step's `index`"
            )
