"""Programs that Paddle saved, in both of its formats: what it gave is what their graphs give.

`make test-peers` asks Paddle again; see peers/paddle_programs.py.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tolerance import assert_close

import stepnet as sn
import stepnet.paddle
from tests.peers.environments import HERE

Array = np.ndarray
SAVED = np.load(HERE / "saved" / "paddle_programs.npz")
ABOUT: Any = json.loads(str(SAVED["about"]))
CASES = {f"{case['format']} {case['name']}": case for case in ABOUT["cases"]}
OFFSETS = np.concatenate([[0], np.cumsum(ABOUT["lengths"])])


def written(case: str, folder: Path) -> Path:
    """The files of a case in a folder: the path of the program."""
    path = folder / f"m.{CASES[case]['format']}"
    path.write_bytes(SAVED[f"{case}/program"].tobytes())
    path.with_suffix(".pdiparams").write_bytes(SAVED[f"{case}/parameters"].tobytes())
    return path


def inputs_of(case: str) -> dict[str, Array]:
    """The inputs by name."""
    front = f"{case}/inputs/"
    return {name.removeprefix(front): SAVED[name] for name in SAVED.files if name.startswith(front)}


def called(case: str, graph: sn.Graph, engine: str) -> Any:
    """The results of a graph for the inputs of a case."""
    inputs, options = inputs_of(case), dict[str, Any]()
    lengths = inputs.pop("lengths", None)
    if lengths is not None:
        options["lengths"] = lengths
    if any(axes.startswith("S") for axes in CASES[case]["axes"]):
        rows = {name: array for name, array in inputs.items() if len(array) == OFFSETS[-1]}
        x: Any = sn.Ragged(next(iter(rows.values())), (OFFSETS,))
    else:
        rows = {name: array for name, array in inputs.items() if name != "h0"}
        x = next(iter(rows.values()))
        x = x.swapaxes(0, 1) if CASES[case]["axes"][0] == "TN_" else x
    statics = {name: array for name, array in inputs.items() if name not in rows}
    return graph(x, statics=statics or None, engine=engine, **options)


def as_paddles(made: Any, axes: str) -> Array:
    """An output with the axes that Paddle gives it."""
    if isinstance(made, sn.Ragged):
        return made.values
    return np.swapaxes(made, 0, 1) if axes in ("TN_", "_N_") else made


@pytest.mark.long(every=3)
@pytest.mark.parametrize("case", CASES)
def test_graphs_give_what_paddle_gave(case: str, tmp_path: Path, engine: str):
    made = called(case, stepnet.paddle.load(written(case, tmp_path)), engine)
    outputs = [made] if len(CASES[case]["axes"]) == 1 else list(made.values())
    assert len(outputs) == len(CASES[case]["axes"])
    for place, (output, axes) in enumerate(zip(outputs, CASES[case]["axes"], strict=True)):
        assert_close(as_paddles(output, axes), SAVED[f"{case}/outputs/{place}"], 12, 8)
