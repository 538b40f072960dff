"""Convolutions and maxima over images whose columns are steps, beside onnxruntime."""

from functools import partial
from typing import Any

import numpy as np
import pytest
from tolerance import assert_close
from zoo import uniform

from stepnet.errors import ModelError
from tests.onnx.onnx_models import helper, model_of, node, numpy_helper, read, theirs, value

random = partial(uniform, seed=0)

# For each, the operator, its attributes and the kernel.
CASES: dict[str, tuple[str, dict[str, Any], tuple[int, int]]] = {
    "same": ("Conv", {"pads": [1, 1, 1, 1]}, (3, 3)),
    "fewer rows": ("Conv", {"pads": [0, 1, 0, 1], "strides": [2, 1]}, (3, 3)),
    "fewer of both, dilated": (
        "Conv",
        {"strides": [2, 3], "dilations": [2, 1], "pads": [2, 0, 1, 2]},
        (2, 3),
    ),
    "zeros that follow": ("Conv", {"auto_pad": "SAME_UPPER", "strides": [2, 1]}, (3, 4)),
    "maxima of rows": ("MaxPool", {"strides": [2, 1]}, (2, 1)),
    "maxima of both": ("MaxPool", {"strides": [2, 2], "pads": [1, 1, 1, 1]}, (3, 3)),
    "means of both": ("AveragePool", {"strides": [2, 1], "pads": [1, 1, 1, 1]}, (3, 3)),
    "each channel": ("Conv", {"group": 2, "pads": [1, 1, 1, 1]}, (3, 3)),
}


def model_with(name: str, steps_last: bool) -> Any:
    """A model over [batch, 2, rows, steps] or [batch, 2, steps, rows]; attributes are of rows and steps."""
    operator, attributes, kernel = CASES[name]
    order = slice(None) if steps_last else slice(None, None, -1)
    own = dict(attributes)
    for title, numbers in attributes.items():
        if title == "pads":
            own[title] = [*numbers[:2][order], *numbers[2:][order]]
        elif title not in ("auto_pad", "group"):
            own[title] = numbers[order]
    groups = attributes.get("group", 1)
    weight = random(4, 2 // groups, *kernel)
    arrays = (
        {"w": weight if steps_last else weight.swapaxes(2, 3), "b": random(4)} if operator == "Conv" else {}
    )
    made = node(operator, "x w b" if arrays else "x", kernel_shape=kernel[order], name="odd", **own)
    sizes = ("n", 2, 8, "t") if steps_last else ("n", 2, "t", 8)
    return model_of([made], [value("x", *sizes)], [value("y", *"abcd")], arrays)


@pytest.mark.parametrize("steps_last", [True, False], ids=["columns", "rows"])
@pytest.mark.parametrize("name", CASES)
def test_images_of_steps_are_as_onnxruntimes(name: str, steps_last: bool) -> None:
    model = model_with(name, steps_last)
    load = read(model, {"x": "N__T" if steps_last else "N_T_"})
    for steps in (5, 9):
        x = random(2, 2, 8, steps)
        (right,) = theirs(model, {"x": x if steps_last else x.swapaxes(2, 3)})
        made = np.asarray(load(np.ascontiguousarray(np.moveaxis(x, 3, 1)), engine="interpret"))
        assert_close(np.moveaxis(made, 1, 3 if steps_last else 2), right, 9, 30)


IMAGE = [value("x", "n", 2, 8, "t")]
REFUSED: dict[str, tuple[Any, dict[str, Any], str]] = {
    "groups": (
        node("Conv", "x w", name="odd", group=3),
        {"w": random(6, 1, 3, 3)},
        "its weight is of [6, 1, 3, 3] with group=3, and its operand has 2 channels",
    ),
    "attributes of one axis": (
        node("Conv", "x w", name="odd", strides=[2]),
        {"w": random(4, 2, 3, 3)},
        "its strides are (2,): there are 2 whole numbers",
    ),
    "too few rows": (
        node("Conv", "x w", name="odd"),
        {"w": random(4, 2, 9, 3)},
        "its kernel reaches over 9 of 8 features",
    ),
    "three axes": (
        node("Conv", "x w", name="odd"),
        {"w": random(4, 2, 3, 3, 3)},
        "its weight has 5 axes",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_images_that_do_not_fit_are_refused(name: str) -> None:
    made, arrays, message = REFUSED[name]
    initial = [numpy_helper.from_array(array, title) for title, array in arrays.items()]
    graph = helper.make_graph([made], "made", IMAGE, [value("y", *[None] * 4)], initial)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    with pytest.raises(ModelError) as error:
        read(model, {"x": "N__T"})
    assert message in str(error.value)
    assert "\n  at node 'odd' (Conv) of " in str(error.value)
