"""From Python to a net: a step function called once on traced values."""

from stepnet.compiler.trace.step import Spec, trace_step

__all__ = ["Spec", "trace_step"]
