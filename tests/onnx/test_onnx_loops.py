"""If and Loop of ONNX models, beside onnxruntime: one sequence at a time where they end by their data."""

from functools import partial
from typing import Any

import numpy as np
import pytest
from tolerance import assert_close
from zoo import uniform

from stepnet.errors import ModelError
from tests.onnx.onnx_models import (
    Array,
    assert_as_theirs,
    helper,
    model_of,
    node,
    numpy_helper,
    read,
    theirs,
    value,
)

random = partial(uniform, seed=0)
BOOL, INT64 = 9, 7
X, Y = [value("x", "n", "t", 3)], [value("y", "n", "t", 3)]


def graph(nodes: Any, outputs: Any, inputs: Any = ()) -> Any:
    return helper.make_graph(list(nodes), "inner", list(inputs), list(outputs))


def branches(condition: str, then: Any, otherwise: Any) -> Any:
    outputs = [value(name, *[None] * 3) for name in ("a", "b")]
    both = {"then_branch": graph([then], outputs[:1]), "else_branch": graph([otherwise], outputs[1:])}
    return node("If", condition, name="choice", **both)


def each_alone(model: Any, inputs: dict[str, Array], steps: int = 10) -> None:
    """Asserts that a batch has the results that onnxruntime has for each of its sequences alone."""
    load = read(model, {"x": "NT"})
    made = np.asarray(load(inputs["x"], engine="interpret"))
    for index, own in enumerate(made):
        (right,) = theirs(model, {name: array[index : index + 1] for name, array in inputs.items()})
        assert_close(own[None], right, steps, 30)


def refused(model: Any) -> str:
    with pytest.raises(ModelError) as error:
        read(model, {"x": "NT"})
    return str(error.value)


# ---- branches ----------------------------------------------------------------------------------------------

KNOWN: dict[str, tuple[list[Any], dict[str, Any]]] = {
    "a constant": ([], {"c": np.array(True)}),
    "a false constant": ([], {"c": np.array([False])}),
    "computed from constants": ([node("Equal", "rate k", "c")], {"rate": 8000, "k": 16000}),
    "from the number of features": (
        [node("Shape", "x", "s"), node("Gather", "s two", "f"), node("Equal", "f three", "c")],
        {"two": 2, "three": 3},
    ),
    "from the number of axes": (
        [node("Shape", "x", "s"), node("Size", "s", "r"), node("Equal", "r three", "c")],
        {"three": 3},
    ),
}


@pytest.mark.parametrize("name", KNOWN)
def test_of_a_known_condition_one_branch_is_read(name: str) -> None:
    nodes, arrays = KNOWN[name]
    made = [*nodes, branches("c", node("Tanh", "x", "a"), node("Exp", "x", "b"))]
    model = model_of(made, X, Y, {name: np.asarray(array) for name, array in arrays.items()})
    assert_as_theirs(model, {"x": random(2, 5, 3)})


def test_the_other_branch_may_have_operators_that_are_not_supported() -> None:
    then = node("Tanh", "x", "a"), node("Det", "x", "b")
    model = model_of([branches("c", *then)], X, Y, {"c": np.array(True)})
    load = read(model, {"x": "NT"})
    x = random(2, 5, 3)
    assert_close(np.asarray(load(x, engine="interpret")), np.tanh(x.astype("float64")), 5, 3)
    other = model_of([branches("c", *then)], X, Y, {"c": np.array(False)})
    assert "Det not supported\n  at node 'choice' (If) of " in refused(other)


def test_a_computed_condition_is_each_sequences_own() -> None:
    nodes = [
        node("ReduceSum", "x behind", "sum", keepdims=0),
        node("Greater", "sum zero", "c"),
        branches("c", node("Tanh", "x", "a"), node("Mul", "x two", "b")),
    ]
    arrays = {"zero": np.float32(0), "two": np.float32(2), "behind": np.array([1, 2])}
    model = unchecked(nodes, arrays)
    each_alone(model, {"x": random(6, 5, 3)})


def test_of_a_file_with_one_sequence_a_condition_may_be_over_all_axes() -> None:
    nodes = [
        node("ReduceSum", "x", "sum", keepdims=0),
        node("Greater", "sum zero", "c"),
        branches("c", node("Tanh", "x", "a"), node("Neg", "x", "b")),
    ]
    model = model_of(nodes, [value("x", 1, "t", 3)], [value("y", 1, "t", 3)], {"zero": np.array(0, "f4")})
    each_alone(model, {"x": random(4, 5, 3)})


def test_a_condition_on_the_number_of_steps_is_each_sequences_own() -> None:
    nodes = [
        node("Shape", "x", "s"),
        node("Gather", "s one", "t"),
        node("Greater", "t four", "c"),
        branches("c", node("Tanh", "x", "a"), node("Neg", "x", "b")),
    ]
    model = model_of(nodes, X, Y, {"one": np.array(1), "four": np.array(4)})
    for steps in (3, 4, 5):
        assert_as_theirs(model, {"x": random(1, steps, 3)})


def test_a_branch_keeps_what_is_known_of_the_padding() -> None:
    nodes = [
        node("RNN", "x W R - lengths", "h", hidden_size=4),
        branches("c", node("Squeeze", "h one", "a"), node("Squeeze", "h one", "b")),
        node("ReduceSum", "y zero", "sum", keepdims=0),
    ]
    arrays = {"W": random(1, 4, 3), "R": random(1, 4, 4), "one": np.array([1]), "zero": np.array([0])}
    inputs = [value("x", "t", "n", 3), value("lengths", "n", kind=6)]
    model = model_of(nodes, inputs, [value("sum", "n", 4)], arrays | {"c": np.array(True)})
    assert_as_theirs(model, {"x": random(5, 3, 3), "lengths": np.array([2, 5, 3], "int32")})


SUM = [node("ReduceSum", "x behind", "sum", keepdims=0), node("Greater", "sum zero", "c")]
WRONG: dict[str, tuple[list[Any], str]] = {
    "axes": (
        [*SUM, branches("c", node("Tanh", "x", "a"), node("ReduceSum", "x axis", "b", keepdims=0))],
        "output 0 is float32 [sequences, steps, 3] in one branch and float32 [sequences, steps] in the other",
    ),
    "dtypes": (
        [*SUM, branches("c", node("Tanh", "x", "a"), node("Cast", "x", "b", to=INT64))],
        "is float32 [sequences, steps, 3] in one branch and int64 [sequences, steps, 3] in the other",
    ),
    "a condition of each step": (
        [
            node("ReduceSum", "x axis", "each", keepdims=0),
            node("Greater", "each zero", "c"),
            branches("c", node("Tanh", "x", "a"), node("Neg", "x", "b")),
        ],
        "its condition is computed at each step, and an If is for a whole sequence",
    ),
    "a number": (
        [branches("zero", node("Tanh", "x", "a"), node("Neg", "x", "b"))],
        "its condition is float32 []: it is one boolean per sequence",
    ),
    "several": (
        [branches("pair", node("Tanh", "x", "a"), node("Neg", "x", "b"))],
        "its condition is bool [2]: it is one boolean per sequence",
    ),
    "no branch": (
        [node("If", "true", name="choice", then_branch=graph([node("Tanh", "x", "a")], Y))],
        "its attribute else_branch is missing, or is not one graph",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_condition_or_branches_that_do_not_fit_are_refused(name: str) -> None:
    nodes, message = WRONG[name]
    arrays = {"zero": np.float32(0), "axis": np.array([2]), "pair": np.array([True, False])}
    arrays |= {"true": np.array(False), "behind": np.array([1, 2])}
    said = refused(unchecked(nodes, arrays))
    assert message in said
    assert "\n  at node 'choice' (If) of " in said


def unchecked(nodes: Any, arrays: dict[str, Any], outputs: Any = Y) -> Any:
    """A model that onnx's checker may refuse too."""
    initial = [stepnet_tensor(name, np.asarray(array)) for name, array in arrays.items()]
    made = helper.make_graph(nodes, "made", X, outputs, initial)
    return helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def stepnet_tensor(name: str, array: Array) -> Any:
    return helper.make_tensor(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape, array.ravel())


# ---- loops -------------------------------------------------------------------------------------------------


def looped(nodes: Any, outputs: Any, operands: str, made: str, around: Any = (), **arrays: Any) -> Any:
    """A model of a Loop with the state h, whose body begins with the index i and the condition go."""
    inputs = [value("i", kind=INT64), value("go", kind=BOOL), value("h", None, 3)]
    body = graph(nodes, [value("on", kind=BOOL), value("after", None, 3), *outputs], inputs)
    loop = node("Loop", operands, made, body=body, name="loop")
    ends = [value(name, *[None] * (2 if name == "last" else 3)) for name in made.split() if name != "-"]
    initial = {name: np.asarray(array) for name, array in arrays.items()}
    return unchecked([*around, loop], initial, ends)


STATE = [node("ReduceSum", "x axis", "h0", keepdims=0)]
"""An initial state, a number per sequence and feature."""
GO = node("Identity", "go", "on")
GROWS = [node("Mul", "h half", "g"), node("Add", "g one", "after")]
NUMBERS = {"axis": np.array([1]), "half": np.float32(0.5), "one": np.float32(1), "true": np.array(True)}


@pytest.mark.parametrize("count", [0, 1, 3])
def test_a_known_number_of_iterations_is_repeated(count: int) -> None:
    nodes = [GO, *GROWS, node("Add", "after h", "each")]
    made = "last each_one" if count else "last"
    outputs = [value("each", None, 3)] if count else []
    model = looped(nodes, outputs, "n true h0", made, STATE, n=np.array(count), **NUMBERS)
    assert_as_theirs(model, {"x": random(2, 5, 3)})


@pytest.mark.parametrize("count", ["n", "t"], ids=["numbers", "steps"])
def test_a_false_condition_at_the_start_leaves_the_state(count: str) -> None:
    numbers = NUMBERS | {"true": np.array(False), "n": np.array(1 << 40), "zero": np.array(0)}
    model = looped([GO, *STEP], [], f"{count} true h0", "last", AROUND, **numbers)
    assert_as_theirs(model, {"x": random(2, 5, 3)})


def test_a_condition_that_is_known_to_become_false_ends_the_repetition() -> None:
    nodes = [node("Less", "i two", "on"), *GROWS]
    model = looped(nodes, [], "- true h0", "last", STATE, two=np.array(2), **NUMBERS)
    numbers = NUMBERS | {"two": np.array(2), "n": np.array(100)}
    assert_as_theirs(looped(nodes, [], "n true h0", "last", STATE, **numbers), {"x": random(2, 5, 3)})
    assert "it has 9223372036854775807 iterations or fewer" in refused(model)


COMPUTED = [node("ReduceMax", "after", "most", axes=[1], keepdims=0), node("Less", "most limit", "on")]


def test_a_computed_condition_ends_each_sequence_by_itself() -> None:
    nodes = [*GROWS, *COMPUTED]
    numbers = NUMBERS | {"n": np.array(9), "limit": np.float32(1.9)}
    each_alone(looped(nodes, [], "n true h0", "last", STATE, **numbers), {"x": 3 * random(6, 5, 3)})


STEP = [node("Gather", "frames i", "f", axis=0), node("Mul", "h half", "g"), node("Add", "g f", "after")]
AROUND = [
    *STATE,
    node("Transpose", "x", "frames", perm=[1, 0, 2]),
    node("Shape", "frames", "s"),
    node("Gather", "s zero", "t"),
]


def test_a_computed_condition_ends_a_loop_over_steps() -> None:
    nodes = [*STEP, *COMPUTED]
    numbers = NUMBERS | {"limit": np.float32(0.4), "zero": np.array(0)}
    each_alone(looped(nodes, [], "t true h0", "last", AROUND, **numbers), {"x": random(6, 5, 3)})


def test_a_loop_over_steps_may_read_its_index_alone() -> None:
    nodes = [GO, node("Cast", "i", "k", to=1), node("Mul", "h half", "g"), node("Add", "g k", "after")]
    numbers = NUMBERS | {"zero": np.array(0)}
    model = looped(nodes, [], "t true h0", "last", AROUND, **numbers)
    for steps in (1, 5):
        assert_as_theirs(model, {"x": random(2, steps, 3)})


def test_a_loop_over_fewer_steps() -> None:
    around = [
        node("Transpose", "x", "wide", perm=[0, 2, 1]),
        node("MaxPool", "wide", "pooled", kernel_shape=[2], strides=[2]),
        node("Transpose", "pooled", "frames", perm=[2, 0, 1]),
        *STATE,
        *AROUND[2:],
    ]
    outputs = [value("after", None, 3)]
    numbers = NUMBERS | {"zero": np.array(0)}
    model = looped([GO, *STEP], outputs, "t true h0", "last each", around, **numbers)
    assert_as_theirs(model, {"x": random(2, 5, 3)})


ALL_STEPS = [node("Cast", "i", "k", to=1), node("Mul", "x k", "xk")]
WHOLE: dict[str, list[Any]] = {
    "the mean of all": [*ALL_STEPS, node("ReduceMean", "xk", "all", axes=[1], keepdims=0)],
    "attention": [
        node("Unsqueeze", "h ahead", "query"),
        node("Add", "x query", "both"),
        node("Tanh", "both", "bent"),
        node("ReduceSum", "bent behind", "scores", keepdims=1),
        node("Softmax", "scores", "weights", axis=1),
        node("Mul", "weights x", "weighted"),
        node("ReduceSum", "weighted ahead", "all", keepdims=0),
    ],
    "attention by products": [
        node("Unsqueeze", "h behind", "query"),
        node("MatMul", "x query", "scores"),
        node("Softmax", "scores", "weights", axis=1),
        node("Transpose", "weights", "turned", perm=[0, 2, 1]),
        node("MatMul", "turned x", "mixed"),
        node("Squeeze", "mixed ahead", "all"),
    ],
}


@pytest.mark.parametrize("name", WHOLE)
def test_each_step_may_read_all_steps(name: str) -> None:
    body = [GO, *STEP[:2], *WHOLE[name], node("Add", "all g", "after")]
    numbers = NUMBERS | {"zero": np.array(0), "ahead": np.array([1]), "behind": np.array([2])}
    model = looped(body, [value("after", None, 3)], "t true h0", "last each", AROUND, **numbers)
    load, x = read(model, {"x": "NT"}), random(2, 5, 3)
    for engine in ("interpret", "llvm", "llvm"):
        last, each = load(x, engine=engine).values()
        for own, right in zip((last, each.swapaxes(0, 1)), theirs(model, {"x": x}), strict=True):
            assert_close(own, right, 5, 30)


REFUSED: dict[str, tuple[Any, str]] = {
    "a negative number": (
        lambda: looped([GO, *GROWS], [], "n true h0", "last", STATE, n=np.array(-1), **NUMBERS),
        "its number of iterations is -1: it is a whole number from 0 on",
    ),
    "too many": (
        lambda: looped([GO, *GROWS], [], "n true h0", "last", STATE, n=np.array(10**6), **NUMBERS),
        "it has 1000000 iterations or fewer: a Loop runs once for each step of a sequence, or a known number "
        "of times that is at most 128",
    ),
    "a computed number": (
        lambda: looped(
            [GO, *GROWS],
            [],
            "n true h0",
            "last",
            [*STATE, node("ReduceSum", "x behind", "sum", keepdims=0), node("Cast", "sum", "n", to=INT64)],
            **NUMBERS,
            behind=np.array([1, 2]),
        ),
        "it does not run once for each step of a sequence: its number of iterations is computed",
    ),
    "outputs that end early": (
        lambda: looped(
            [*GROWS, *COMPUTED],
            [value("after", None, 3)],
            "n true h0",
            "last each",
            STATE,
            **NUMBERS,
            n=np.array(3),
            limit=np.float32(1.9),
        ),
        "output 'each' cannot be computed: its condition is computed, so that its outputs of each iteration "
        "end early",
    ),
    "a state of another dtype": (
        lambda: looped(
            [*GROWS[:1], node("Cast", "g", "after", to=11), *COMPUTED],
            [],
            "n true h0",
            "last",
            STATE,
            **NUMBERS,
            n=np.array(3),
            limit=np.float64(1.9),
        ),
        "a state is float32 [sequences, 3] before an iteration and float64 [sequences, 3] after it",
    ),
    "steps counted from the last": (
        lambda: looped(
            [
                *[GO, node("Sub", "t i", "back"), node("Cast", "back", "behind", to=1)],
                node("Mul", "h behind", "after"),
            ],
            [],
            "t true h0",
            "last",
            AROUND,
            **NUMBERS | {"zero": np.array(0)},
        ),
        "it computes values with the number of sequences or steps, which neither the body of a loop nor",
    ),
    "no body": (
        lambda: unchecked([*STATE, node("Loop", "n true h0", "y", name="loop")], NUMBERS | {"n": 3}),
        "its attribute body is missing, or is not one graph",
    ),
}


def test_what_no_step_changes_is_computed_once_before_a_loop() -> None:
    nodes = [
        *[GO, *STEP[:2], node("ReduceMean", "x", "all", axes=[1], keepdims=0)],
        node("Add", "all g", "after"),
    ]
    numbers = NUMBERS | {"zero": np.array(0)}
    assert_as_theirs(looped(nodes, [], "t true h0", "last", AROUND, **numbers), {"x": random(2, 5, 3)})


@pytest.mark.parametrize("name", REFUSED)
def test_loops_that_are_refused(name: str) -> None:
    make, message = REFUSED[name]
    assert message in refused(make())


# ---- lists -------------------------------------------------------------------------------------------------


def listed(
    nodes: Any, operands: str = "t true h0 list", around: Any = (), steps: Any = STEP, **more: Any
) -> Any:
    """A model of a Loop over steps with the states h and a list, whose entries are joined behind it."""
    joined: dict[str, Any] = {"axis": 1, "new_axis": 1} | more
    kinds = helper.make_sequence_type_proto(helper.make_tensor_type_proto(1, None))
    inputs = [value("i", kind=INT64), value("go", kind=BOOL), value("h", None, 3)]
    inputs.append(helper.make_value_info("outs", kinds))
    outputs = [value("on", kind=BOOL), value("after", None, 3), helper.make_value_info("more", kinds)]
    loop = node(
        "Loop", operands, "last every", body=graph([GO, *steps, *nodes], outputs, inputs), name="loop"
    )
    begins = list(around) or [node("SequenceEmpty", "", "list")]
    end = node("ConcatFromSequence", "every", name="join", **joined)
    return unchecked([*AROUND, *begins, loop, end], NUMBERS | {"zero": np.array(0), "n": np.array(3)})


INSERT = node("SequenceInsert", "outs after", "more", name="insert")


def test_a_list_that_grows_at_each_step_is_a_value_per_step() -> None:
    assert_as_theirs(listed([INSERT]), {"x": random(2, 5, 3)})
    assert_as_theirs(listed([INSERT], axis=0), {"x": random(2, 5, 3)})


def test_entries_of_one_step_are_joined_along_their_steps() -> None:
    nodes = [node("Unsqueeze", "after one", "wide"), node("SequenceInsert", "outs wide", "more")]
    model = listed(nodes, new_axis=0)
    model.graph.node[-2].attribute[0].g.initializer.append(numpy_helper.from_array(np.array([1]), "one"))
    assert_as_theirs(model, {"x": random(2, 5, 3)})


def test_a_list_of_a_known_number_of_iterations() -> None:
    assert_as_theirs(listed([INSERT], "n true h0 list", steps=GROWS), {"x": random(2, 5, 3)})


def test_entries_of_a_list_of_tensors() -> None:
    nodes = [
        node("Tanh", "x", "a"),
        node("SequenceConstruct", "a x", "list"),
        node("SequenceAt", "list last", "b"),
        node("ConcatFromSequence", "list", "c", axis=2),
        node("Add", "a b", "d"),
        node("Concat", "c d", "y", axis=2),
    ]
    assert_as_theirs(unchecked(nodes, {"last": np.array(-1)}), {"x": random(2, 5, 3)})


def growing(nodes: Any, axis: int) -> Any:
    """A model of a Loop over steps with the states h and an array, which begins without entries."""
    inputs = [value("i", kind=INT64), value("go", kind=BOOL), value("h", None, 3), value("outs", *[None] * 3)]
    outputs = [value("on", kind=BOOL), value("after", None, 3), value("more", *[None] * 3)]
    body = graph([GO, *STEP, node("Unsqueeze", "after at", "wide"), *nodes], outputs, inputs)
    body.initializer.append(numpy_helper.from_array(np.array([axis]), "at"))
    shape = [node("Shape", "x", "every"), node("Gather", "every first", "rows")]
    begins = [node("Concat", "none rows three" if not axis else "rows none three", "sizes", axis=0)]
    begins.append(node("ConstantOfShape", "sizes", "nothing"))
    loop = node("Loop", "t true h0 nothing", "last y", body=body, name="loop")
    arrays = NUMBERS | {
        "zero": np.array(0),
        "first": np.array([0]),
        "none": np.array([0]),
        "three": np.array([3]),
    }
    return unchecked([*AROUND, *shape, *begins, loop], arrays)


@pytest.mark.parametrize("axis", [0, 1])
def test_an_array_that_grows_at_each_step_is_a_value_per_step(axis: int) -> None:
    model = growing([node("Concat", "outs wide", "more", axis=axis)], axis)
    assert_as_theirs(model, {"x": random(2, 5, 3)})


@pytest.mark.parametrize(
    ("nodes", "message"),
    [
        ([node("Concat", "outs wide wide", "more", axis=0)], "it adds several values at once to an array"),
        (
            [node("Concat", "outs wide", "longer", axis=0), node("Tanh", "longer", "more")],
            "a state is [0, sequences, 3] before a step and [1, sequences, 3] after it",
        ),
    ],
)
def test_arrays_that_grow_otherwise_are_refused(nodes: Any, message: str) -> None:
    assert message in refused(growing(nodes, 0))


LISTS: dict[str, tuple[Any, str, str]] = {
    "two entries": (
        lambda: listed(
            [node("SequenceInsert", "outs after", "first"), node("SequenceInsert", "first g", "more")]
        ),
        "its body adds 2 entries to a list, and each iteration adds one",
        "loop",
    ),
    "no entry": (
        lambda: listed([node("Identity", "outs", "more")]),
        "its body adds 0 entries to a list, and each iteration adds one",
        "loop",
    ),
    "another place": (
        lambda: listed([node("SequenceInsert", "outs after one_place", "more", name="insert")]),
        "it adds to a list at 1: that is supported only at its end",
        "insert",
    ),
    "entries before": (
        lambda: listed([INSERT], around=[node("SequenceConstruct", "h0", "list")]),
        "a Loop over steps adds to a list that has entries before",
        "loop",
    ),
    "an axis that is not of size one": (
        lambda: listed([INSERT], new_axis=0),
        "it joins [sequences, 3] of each step along axis 1, which is not of size 1",
        "join",
    ),
    "no list": (
        lambda: unchecked([node("ConcatFromSequence", "x", axis=0, name="join")], {}),
        "its operand is [sequences, steps, 3], where a list of tensors is expected",
        "join",
    ),
    "an empty list": (
        lambda: unchecked(
            [node("SequenceEmpty", "", "e"), node("ConcatFromSequence", "e", axis=0, name="join")], {}
        ),
        "it joins the entries of a list that has none",
        "join",
    ),
    "a list as a tensor": (
        lambda: unchecked([node("SequenceConstruct", "x", "e"), node("Tanh", "e", name="join")], {}),
        "it is a list of tensors, which only operators on lists read",
        "join",
    ),
    "no such entry": (
        lambda: unchecked(
            [node("SequenceConstruct", "x", "e"), node("SequenceAt", "e two", name="join")],
            {"two": np.array(2)},
        ),
        "it takes entry 2 of a list with 1 entries",
        "join",
    ),
}


@pytest.mark.parametrize("name", LISTS)
def test_lists_that_are_refused(name: str) -> None:
    make, message, at = LISTS[name]
    model = make()
    model.graph.initializer.append(numpy_helper.from_array(np.array(1), "one_place"))
    said = refused(model)
    assert message in said
    assert f"\n  at node '{at}' (" in said or f"\n  at node 'loop/{at}' (" in said
