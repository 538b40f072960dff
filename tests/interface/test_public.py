"""The effects of `import stepnet`: the names that users see, and no more modules than a run needs."""

import json
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import stepnet

NAMES = {
    "stepnet": """
        Bidirectional Conversion Gradients Graph Model Progress RNN Ragged Spec Stack StepnetError __version__
        attention avg_pool1d beam_search
        builder cells conv1d conv_transpose1d
        convert create_rnn_op elu erf expand foreach gelu generate hard_sigmoid jvp
        layer_norm layout leaky_relu load masks max_pool1d
        one_hot pad_steps progress quantize reduce relu sampling scan selu
        set_threads sigmoid silu
        softmax softmax_over_steps softplus softsign value_and_grad vjp
    """,
    "stepnet.model.builder": "add_two create_rnn_op foreach matmul",
    "stepnet.cells": """
        CELLS Cell FORMS Form causal_convolution cell delta_rule gated_delta_product gated_delta_rule gla
        gru gru_reset_before hgrn2 kda linear_attention lru lstm lstm_peephole lstm_projection mamba mamba2
        memory min_gru min_lstm minimal_gated_unit mlstm retnet rg_lru rnn rwkv4 rwkv6 rwkv7 s5 simple_gla
        simple_rnn simple_rnn_relu slstm ttt_linear
    """,
    "stepnet.layout": """
        Conversion Record Semantics Sizes Weights convert find from_torch layers record records verify
    """,
    "stepnet.model.masks": "dropout uniform",
    "stepnet.keras": """
        Bidirectional GRU LSTM RNN SimpleRNN StackedRNNCells TimeDistributed accelerate counters report
    """,
    "stepnet.onnx": "Backend Prepared load save",
    "stepnet.paddle": "load",
    "stepnet.arrow": "Predictor Progress Summary predict run",
    "stepnet.ray": "WorkerError predict",
    "stepnet.build": "Build DeviceBuild Library build load",
    "stepnet.torch": "GRU GRUCell LSTM LSTMCell Linear RNN RNNCell Recurrence Scan accelerate decompositions "
    "explain graph ready trace",
}

# What is imported where it is used: by the command line, pages and tables, files, generated code, frameworks.
NOT_IMPORTED = """
    rich jinja2 typer llvmlite.binding llvmlite.ir multiprocessing concurrent.futures subprocess tempfile
    zipfile asyncio xml.etree email unittest pydoc numpy.random numpy.ctypeslib safetensors torch pyarrow
    keras tensorflow jax onnx onnxruntime msgpack h5py matplotlib stepnet.cli stepnet.cli.demo
    stepnet.layout.files stepnet.torch stepnet.onnx stepnet.paddle stepnet.keras stepnet.build stepnet.arrow
    stepnet.ray ray stepnet.jax
    stepnet.compiler.targets.cpu difflib stepnet.cli.report.show stepnet.explain.page
    stepnet.cells stepnet.layout stepnet.model.graph stepnet.compiler.grad stepnet.model.compose
    stepnet.model.gradients.cotangents stepnet.explain.plan
"""
MOST = {"of stepnet": 124, "of Python": 110, "of all others": 140}
"""The most modules that may be loaded: some more than there are, NumPy's among the last."""

LOADED = """
import sys
before = set(sys.modules)
import stepnet
import json
print(json.dumps(sorted(set(sys.modules) - before)))
"""


def loaded(text: str) -> list[str]:
    """The output of a Python process."""
    command = [sys.executable, "-c", text]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


@pytest.fixture(scope="module")
def modules() -> list[str]:
    return loaded(LOADED)


def test_only_what_running_a_step_needs_is_imported(modules: list[str]):
    assert [name for name in NOT_IMPORTED.split() if name in modules] == []


def test_batches_of_arrow_need_no_framework():
    text = LOADED.replace("import stepnet\n", "import stepnet.arrow\n")
    frameworks = {"onnx", "onnxruntime", "torch", "keras", "ray", "pandas"}
    assert {name.partition(".")[0] for name in loaded(text)} & frameworks == set()


def test_layers_of_pytorch_do_not_import_its_compiler():
    text = LOADED.replace("import stepnet\n", "import stepnet.torch\n")
    assert [name for name in loaded(text) if name.startswith("torch._dynamo")] == []


def test_few_modules_are_imported(modules: list[str]):
    kinds = {
        "of stepnet": [name for name in modules if name.split(".")[0] == "stepnet"],
        "of Python": [name for name in modules if name.split(".")[0] in sys.stdlib_module_names],
    }
    kinds["of all others"] = [name for name in modules if not any(name in known for known in kinds.values())]
    counts = {kind: len(names) for kind, names in kinds.items()}
    assert all(counts[kind] <= MOST[kind] for kind in MOST), f"{counts}: {kinds}"
    print(counts)


@pytest.mark.parametrize("name", [name for name in NAMES if name != "stepnet.torch"])
def test_users_see_what_is_meant_for_them(name: str):
    module = import_module(name)
    seen = [one for one in dir(module) if one not in ("torch", "keras")]  # seen where they were imported
    assert seen == sorted(NAMES[name].split())
    assert sorted(module.__all__) == seen
    assert all(hasattr(module, one) for one in seen)


def test_the_front_end_of_torch_is_seen_where_it_was_imported():
    pytest.importorskip("torch")
    assert "torch" not in loaded("import json, stepnet as sn; print(json.dumps(dir(sn)))")
    assert dir(import_module("stepnet.torch")) == NAMES["stepnet.torch"].split()
    assert "torch" in dir(stepnet)


def test_modules_for_frameworks_are_imported_when_they_are_first_named():
    code = "import json, sys, stepnet as sn; sn.build, sn.onnx; print(json.dumps([*sys.modules]))"
    modules = loaded(code)
    assert {"stepnet.build", "stepnet.onnx"} <= set(modules)
    assert "stepnet.ray" not in modules


def test_a_star_brings_the_same_names():
    names: dict[str, object] = {}
    exec("from stepnet import *", names)
    assert sorted(names.keys() - {"__builtins__"}) == sorted(stepnet.__all__)


LLVM = Path(stepnet.__file__).parent / "compiler" / "targets" / "cpu"
STAGES = ["machine", "writing", "threads", "products", "lower", "emit", "compile", "running", "library"]
"""The folders of the target cpu, in the order of docs/design/cpu.md: each imports only from those before."""


def imported_stages(module: Path) -> set[str]:
    """The stages of the engine that a module imports from."""
    lines = re.findall(
        r"^ *from stepnet\.compiler\.targets\.cpu\.(\w+)\.", module.read_text("utf-8"), re.MULTILINE
    )
    return set(lines)


def test_stages_of_the_engine_import_from_earlier_ones():
    assert {module.parent.name for module in LLVM.glob("*/*.py")} == set(STAGES)
    wrong = {
        f"{stage}/{module.name}": sorted(imported_stages(module) & set(STAGES[number + 1 :]))
        for number, stage in enumerate(STAGES)
        for module in (LLVM / stage).glob("*.py")
    }
    assert {module: stages for module, stages in wrong.items() if stages} == {}
