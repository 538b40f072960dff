"""A model as one step of one sequence, for programs of one frame."""

from typing import Any

from stepnet.build.model import built_model
from stepnet.compiler.targets import library_engine
from stepnet.compiler.targets.frame import ModelStep
from stepnet.model.streams.frames import step_of_call, with_names


def model_step(model: Any, inputs: Any = None, statics: Any = None) -> ModelStep:
    """Returns one step of a model, with all memories of its stream.

    inputs, statics: the features of the inputs and statics (values that each sequence has once, given at each
    step), needed if the model was made without them. Raises `InputError` for what is no model, for one that
    has no stream, and for one whose memories begin with its inputs.
    """
    call = built_model(model, library_engine().name, inputs, statics)
    step: ModelStep | None = getattr(model, "frame_step", None)
    return step_of_call(call) if step is None else with_names(step, call)
