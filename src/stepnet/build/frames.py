"""A model as one step of one sequence, for programs of one frame."""

from typing import Any

from stepnet.build.model import built_model
from stepnet.compiler.targets import library_engine
from stepnet.compiler.targets.frame import ModelStep
from stepnet.errors import InputError
from stepnet.model.streams.frames import step_of_call, with_names


def model_step(model: Any, inputs: Any = None, statics: Any = None, dtype: Any = None) -> ModelStep:
    """Returns one step of a model, with all memories of its stream.

    inputs, statics: the features of the inputs and statics (values that each sequence has once, given at each
    step), needed if the model was made without them. dtype: that of 16 bits to which matrices and tables are
    rounded; None for those that the model has. Raises `InputError` for what is no model, for one that has no
    stream, for one whose memories begin with its inputs, and for a dtype of a model that has low precisions.
    """
    call = built_model(model, library_engine().name, inputs, statics, one_frame=True)
    step: ModelStep | None = getattr(model, "frame_step", None)
    if step is None:
        return step_of_call(call, dtype)
    if dtype is not None:
        raise InputError("a model in integers alone has weights of int8: leave out dtype")
    return with_names(step, call)
