"""Lengths from attention masks: where padding follows the sequences, the recurrences do not run over it.

mask  1 1 1 0      length 3, so that one step of the first row is not run
      1 1 1 1             4
"""

import functools
import inspect
from collections.abc import Callable
from typing import Any

import numpy as np

from stepnet.torch.patches.transformers.scan import LENGTHS
from stepnet.torch.pytorch import pytorch
from stepnet.torch.recording import is_recorded

torch: Any = pytorch("torch")


def lengths_of(mask: Any) -> Any:
    """Reads the length of each row from an attention mask [batch, time] in which zeros only follow the ones.

    Returns None if there is no mask of this form on the CPU, if nothing is masked, or if zeros precede the
    ones or lie between them.
    """
    if not isinstance(mask, torch.Tensor) or mask.dim() != 2 or mask.device.type != "cpu":
        return None
    kept = mask != 0
    lengths = kept.sum(1)
    places = torch.arange(mask.shape[1])
    if not bool(((places < lengths[:, None]) == kept).all()) or bool((lengths == mask.shape[1]).all()):
        return None
    return lengths.numpy().astype(np.int64)


def with_lengths(forward: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps a layer's forward so that recurrences in it skip the padding that its argument `attention_mask`
    marks; a forward without this argument is returned as it is.

    With a cache they do not skip it: transformers saves the states after the padding in the cache.
    """
    _, *names = inspect.signature(forward).parameters
    if "attention_mask" not in names:
        return forward

    def argument(name: str) -> Callable[[tuple[Any, ...], dict[str, Any]], Any]:
        """Makes the function that finds an argument in a call's args and kwargs, by position or name."""
        place = names.index(name) if name in names else len(names)
        return lambda args, kwargs: args[place] if place < len(args) else kwargs.get(name)

    cache, mask = argument("cache_params"), argument("attention_mask")

    @functools.wraps(forward)
    def measured(self: Any, *args: Any, **kwargs: Any) -> Any:
        """Calls the forward, with the lengths of the sequences in `LENGTHS` while it runs; with None there if
        the call has a cache or no usable mask, or is recorded in a graph.
        """
        is_plain = cache(args, kwargs) is None and not is_recorded()
        lengths = lengths_of(mask(args, kwargs)) if is_plain else None
        if lengths is None and LENGTHS.get() is None:
            return forward(self, *args, **kwargs)
        token = LENGTHS.set(lengths)
        try:
            return forward(self, *args, **kwargs)
        finally:
            LENGTHS.reset(token)

    return measured
