"""Every error that stepnet raises on purpose.

All derive from `StepnetError`, so `except sn.StepnetError` catches what is the caller's to mend and nothing
else. Inner code raises the short local fact; the public function adds the user's own names once.
"""


class StepnetError(Exception):
    """The base of every error that stepnet raises on purpose."""


class StepError(StepnetError):
    """A step does what a step cannot: it mixes rows, changes a memory, or uses an unknown operation."""


class InputError(StepnetError):
    """Arrays, lengths or sequences do not fit what they are given to."""


class NetError(StepnetError):
    """A net breaks its own rules: what a pass or a front end made is illegal."""


class RefusedError(StepnetError):
    """Every engine asked refused, each with its reason."""


class FileError(StepnetError):
    """A file is not what it should be: truncated, foreign or hostile."""


class LayoutError(InputError):
    """Weights do not fit a layout, a layout cannot be told, or a layout is not written as one."""


class ConversionError(LayoutError):
    """Weights cannot become those of another layout without changing the function they parametrise."""
