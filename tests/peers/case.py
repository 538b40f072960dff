"""The results of a framework for some weights: written by its own process, read by the tests.

Needs NumPy alone, of any version, as it runs in the environment of each framework.
"""

import json
import sys

import numpy as np

INPUTS, HIDDEN, PROJECTED, ROWS, STEPS = 2, 3, 2, 2, 5
RANDOM = np.random.RandomState(7)


def random(*shape):
    """Weights, or inputs: normal numbers in float32, never zero."""
    return (RANDOM.normal(size=shape) * 0.6).astype("float32")


def case(layout, arrays, inputs, outputs, semantics=None, sizes=None):
    """One case: the layout, arrays by the framework's names, inputs [rows, steps, inputs], and outputs."""
    return {
        "layout": layout,
        "arrays": {name: np.asarray(array) for name, array in arrays.items()},
        "inputs": np.asarray(inputs, "float32"),
        "outputs": np.asarray(outputs, "float32"),
        "semantics": semantics or {},
        "sizes": sizes or {},
    }


def save(cases, versions):
    """Writes the cases to the path on the command line."""
    arrays, told = {}, []
    for number, one in enumerate(cases):
        for name, array in one["arrays"].items():
            arrays[f"{number}|{name}"] = array
        for name in ("inputs", "outputs"):
            arrays[f"{number}||{name}"] = one[name]
        told.append({name: one[name] for name in ("layout", "semantics", "sizes")})
    arrays["told"] = np.array(json.dumps({"cases": told, "versions": versions}))
    np.savez_compressed(sys.argv[1], **arrays)


def load(path):
    """The cases of a file, and the versions of what made them."""
    with np.load(path) as file:
        told = json.loads(str(file["told"]))
        cases = []
        for number, one in enumerate(told["cases"]):
            front = f"{number}|"
            held = {name[len(front) :]: file[name] for name in file.files if name.startswith(front)}
            once = {}  # a parameter that has several names is one array: the numbers are random
            held = {name: once.setdefault(array.tobytes(), array) for name, array in held.items()}
            inputs, outputs = held.pop("|inputs"), held.pop("|outputs")
            cases.append(case(one["layout"], held, inputs, outputs, one["semantics"], one["sizes"]))
    return cases, told["versions"]
