"""Marks of tensors, which tell whether they changed since machine code packed their numbers.

    address    another tensor, or memory of its own
    version    a change in place, which PyTorch counts
    steps      a step of a fused optimizer (`fused=True`), which changes parameters and is not counted

Other changes that PyTorch does not count, as through `.data`, have no mark.
"""

from collections.abc import Mapping, Sequence
from dataclasses import field
from operator import attrgetter
from typing import Any

from stepnet.compiler.values.records import dataclass
from stepnet.torch.pytorch import pytorch

torch: Any = pytorch("torch")
weak: Any = pytorch("torch.utils.weak")
VERSION = attrgetter("_version")


@dataclass
class FusedSteps:
    """Count of the steps of fused optimizers that changed packed tensors.

    packed: the tensors that were packed and still exist. is_hooked: whether PyTorch calls `note`.
    """

    count: int = 0
    packed: Any = field(default_factory=weak.WeakTensorKeyDictionary)
    is_hooked: bool = False

    def watch(self, tensors: Sequence[Any]) -> None:
        """Counts the steps that change these tensors from now on."""
        if not self.is_hooked:
            self.is_hooked = True
            pytorch("torch.optim.optimizer").register_optimizer_step_post_hook(self.note)
        for tensor in tensors:
            self.packed[tensor] = True

    def note(self, optimizer: Any, arguments: tuple[Any, ...], named: Mapping[str, Any]) -> None:
        """Counts a step of an optimizer, if it is fused and changed a packed tensor."""
        groups = [group for group in optimizer.param_groups if group.get("fused")]
        if any(tensor in self.packed for group in groups for tensor in group["params"]):
            self.count += 1


FUSED = FusedSteps()


def marks_of(tensors: Sequence[Any]) -> list[int]:
    """Returns the marks of tensors; they are equal as long as no change of these tensors is known."""
    return [*map(torch.Tensor.data_ptr, tensors), *map(VERSION, tensors), FUSED.count]


def packed_marks(tensors: Sequence[Any]) -> list[int]:
    """Returns the marks of tensors that are packed now, to compare them with later ones."""
    FUSED.watch(tensors)
    return marks_of(tensors)
