"""Commands where something around them is missing, full, too old or without permission: each ends with a
code, without a traceback, and with a line that names the thing.

All commands of one kind of surroundings run in forks of one process, which imports the command line once.
"""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from safetensors.numpy import save_file

import stepnet as sn
from stepnet import cells

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="os.fork is missing")

FORKS = Path(__file__).parents[1] / "processes" / "surroundings.py"
UNPRIVILEGED = """
import ctypes, os
if os.geteuid() == 0 and hasattr(libc := ctypes.CDLL(None), "capset"):
    libc.capset((ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)())
"""
"""The surroundings of a user for whom permissions count, as they do for root without its capabilities."""
FULL = """
import resource, signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (400, 400))
"""
"""The surroundings in which a file has room for few bytes, and the system refuses the others."""


def without(*modules: str) -> str:
    """The surroundings in which modules are not installed."""
    return f"import sys\nfor name in {modules!r}: sys.modules[name] = None\n"


def older(module: str, version: str) -> str:
    """The surroundings in which a module is of an older version."""
    made = f"sys.modules[{module!r}] = old = ModuleType({module!r})"
    return f"import sys\nfrom types import ModuleType\n{made}\nold.__version__ = {version!r}\n"


def python(text: str) -> str:
    """The surroundings in which Python runs a text in place of a command; errors are said as by a command."""
    attempt = f"try: {text}\nexcept sn.StepnetError as error: sys.exit(str(error))\n"
    return f"run = False\nimport sys, stepnet as sn\n{attempt}"


class Case(NamedTuple):
    """A command: its arguments, its surroundings, the exit code, and what it says."""

    arguments: str
    surroundings: str
    code: int
    says: str


CASES: dict[str, Case] = {
    # packages
    "run without pyarrow": Case(
        "run gru.stepnet x.parquet -o out.parquet",
        without("pyarrow"),
        1,
        'stepnet: Parquet and Arrow files need pyarrow: pip install "stepnet[arrow]"',
    ),
    "to ONNX without onnx": Case(
        "convert gru.stepnet out.onnx",
        without("onnx"),
        1,
        'an .onnx file needs onnx: pip install "stepnet[onnx]"',
    ),
    "to Keras without h5py": Case(
        "convert gru.safetensors out.keras --to keras",
        without("h5py"),
        1,
        'a Keras file needs h5py: pip install "stepnet[keras]"',
    ),
    "to Flax without msgpack": Case(
        "convert gru.safetensors out.msgpack --to flax",
        without("msgpack"),
        1,
        'a .msgpack file needs msgpack: pip install "stepnet[flax]"',
    ),
    "stepnet.torch without torch": Case(
        "", without("torch") + python("import stepnet.torch"), 1, 'need torch: pip install "stepnet[torch]"'
    ),
    "stepnet.keras without Keras": Case(
        "", without("keras") + python("import stepnet.keras"), 1, 'pip install "stepnet[keras,torch]"'
    ),
    "stepnet.ray without Ray": Case(
        "", without("ray") + python("import stepnet.ray"), 1, 'pip install "stepnet[ray]"'
    ),
    "stepnet.jax without JAX": Case("", without("jax") + python("import stepnet.jax"), 1, "pip install"),
    "an old onnx": Case(
        "convert gru.stepnet out.onnx",
        older("onnx", "1.9.0"),
        1,
        'onnx 1.9.0 is installed, and stepnet needs 1.17 or later: pip install "stepnet[onnx]"',
    ),
    "an old pyarrow": Case(
        "run gru.stepnet x.parquet -o out.parquet",
        older("pyarrow", "9.0.0"),
        1,
        'pyarrow 9.0.0 is installed, and stepnet needs 19.0.1 or later: pip install "stepnet[arrow]"',
    ),
    "an old torch": Case(
        "",
        older("torch", "1.13.1+cu117") + python("import stepnet.torch"),
        1,
        "torch 1.13.1+cu117 is installed, and stepnet needs 2.7 or later",
    ),
    "an old llvmlite": Case(
        "build gru.stepnet -o lib",
        older("llvmlite", "0.40.1"),
        1,
        "llvmlite 0.40.1 is installed, and stepnet needs 0.46 or later",
    ),
    # folders without permission
    "to a folder without permission": Case(
        "convert gru.safetensors locked/out.npz --to keras",
        UNPRIVILEGED,
        1,
        "locked/out.npz: the file cannot be written",
    ),
    "a library there": Case(
        "build gru.stepnet -o locked/lib", UNPRIVILEGED, 1, "locked/lib: the folder cannot be made"
    ),
    "results there": Case(
        "run gru.stepnet x.parquet -o locked/out.parquet",
        UNPRIVILEGED,
        1,
        "locked/out.parquet: the file cannot be written",
    ),
    "a drawing there": Case("show gru.stepnet --html locked/a.html", UNPRIVILEGED, 1, "locked/a.html"),
    "a model there": Case(
        "",
        UNPRIVILEGED + python("sn.load('gru.stepnet').save('locked/new.stepnet')"),
        1,
        "locked/new.stepnet: the file cannot be written (Permission denied)",
    ),
    "a cache there": Case("cache", UNPRIVILEGED + "os.environ['STEPNET_CACHE_DIR'] = 'locked/cache'", 0, ""),
    "a call with such a cache": Case(
        "run gru.stepnet x.parquet -o open/out.parquet",
        UNPRIVILEGED + "os.environ['STEPNET_CACHE_DIR'] = 'locked/cache'",
        0,
        "",
    ),
    # full disks
    "convert to a full disk": Case(
        "convert gru.safetensors full.npz --to keras",
        FULL,
        1,
        "full.npz: the file cannot be written (File too large)",
    ),
    "ONNX to a full disk": Case(
        "convert gru.stepnet full.onnx", FULL, 1, "full.onnx: the file cannot be written (File too large)"
    ),
    "a library to a full disk": Case(
        "build gru.stepnet -o full", FULL, 1, "the file cannot be written (File too large)"
    ),
    "results to a full disk": Case(
        "run gru.stepnet x.parquet -o full.parquet",
        FULL,
        1,
        "full.parquet: the file cannot be written (File too large",
    ),
    "a model to a full disk": Case(
        "",
        FULL + python("sn.load('gru.stepnet').save('full.stepnet')"),
        1,
        "full.stepnet: the file cannot be written (File too large)",
    ),
    "to a device": Case(
        "convert gru.safetensors /dev/full --to keras", "", 1, "/dev/full: this is a device, not a file"
    ),
    # names that are no UTF-8
    "a missing file of such a name": Case(
        "show caf\udce9.onnx", "", 1, "caf\\udce9.onnx: there is no such file"
    ),
    "show of such a file": Case("show caf\udce9.safetensors", "", 0, ""),
    "JSON of such a file": Case("show caf\udce9.safetensors --json", "", 0, ""),
    "to such a file": Case("convert gru.safetensors n\udce9.npz --to keras", "", 0, ""),
    "a library of such a name": Case("build caf\udce9.stepnet -o lib\udce9", "", 0, ""),
    "results of such a file": Case("run gru.stepnet x\udce9.parquet -o y\udce9.parquet", "", 0, ""),
    # variables
    "no HOME": Case(
        "cache", "import os\nfor name in ('HOME', 'STEPNET_CACHE_DIR'): os.environ.pop(name, None)", 0, ""
    ),
    "no Keras backend": Case(
        "convert gru.safetensors new.keras --to keras --verify",
        "import os, sys\nsys.modules['tensorflow'] = None\nos.environ.pop('KERAS_BACKEND', None)\n"
        "os.environ['KERAS_HOME'] = '/nowhere'",
        0,
        "needs tensorflow, which is not installed; KERAS_BACKEND=torch sets another backend",
    ),
}
PLAIN = {
    "show": Case("show é.safetensors", "", 0, ""),
    "explain": Case("explain é.stepnet", "", 0, ""),
    "convert": Case("convert é.safetensors ü.npz --to keras", "", 0, ""),
    "layouts": Case("layouts", "", 0, ""),
    "help": Case("run --help", "", 0, ""),
    "a missing file": Case("show ö.onnx", "", 1, ".onnx: there is no such file"),
}
"""Commands in a locale without UTF-8."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with models, data, and folders of which one is locked."""
    folder = tmp_path_factory.mktemp("around")
    folder.chmod(0o755)
    for name, mode in (("locked", 0o555), ("open", 0o777)):
        (folder / name).mkdir()
        (folder / name).chmod(mode)
    parameters = cells.CELLS["gru"].parameters(inputs=3, hidden=40)
    model = cells.rnn("gru", parameters)
    model(np.zeros((1, 2, 3), "float32"))
    rng = np.random.default_rng(0)
    state = {
        "weight_ih_l0": rng.normal(size=(120, 3)).astype("f4") / 10,
        "weight_hh_l0": rng.normal(size=(120, 40)).astype("f4") / 10,
        "bias_ih_l0": np.zeros(120, "f4"),
        "bias_hh_l0": np.zeros(120, "f4"),
    }
    frames = sn.Ragged.from_list([np.ones((4, 3), "float32")]).to_arrow()
    for name in ("gru", "caf\udce9", "é"):
        model.save(folder / f"{name}.stepnet")
        save_file(state, folder / f"{name}.safetensors")
    pq.write_table(pa.table({"x": frames}), folder / "x.parquet")
    (folder / "x\udce9.parquet").write_bytes((folder / "x.parquet").read_bytes())
    return folder


def results(cases: Mapping[str, Case], folder: Path, **environment: str) -> dict[str, tuple[int, str, str]]:
    """The exit code of each command, and what it writes to stderr and stdout."""
    asked = json.dumps([(case.arguments.split(), case.surroundings) for case in cases.values()])
    done = subprocess.run(
        [sys.executable, "-B", str(FORKS)],  # where a disk is full, Python leaves parts of compiled modules
        input=asked.encode(),
        capture_output=True,
        cwd=folder,
        env={**os.environ, **environment},
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode(errors="replace")
    return dict(zip(cases, json.loads(done.stdout), strict=True))


@pytest.fixture(scope="module")
def said(folder: Path) -> dict[str, tuple[int, str, str]]:
    return results(CASES, folder)


@pytest.fixture(scope="module")
def plainly_said(folder: Path) -> dict[str, tuple[int, str, str]]:
    return results(PLAIN, folder, LC_ALL="C", PYTHONUTF8="0", PYTHONCOERCECLOCALE="0")


def check(case: Case, code: int, text: str, printed: str) -> None:
    assert "Traceback" not in text, text
    assert (code, case.says in text + printed) == (case.code, True), text
    if code:
        assert len(text.splitlines()) == 1, text


@pytest.mark.parametrize("name", CASES)
def test_a_command_says_what_is_missing_around_it(said: dict[str, tuple[int, str, str]], name: str) -> None:
    check(CASES[name], *said[name])


@pytest.mark.parametrize("name", PLAIN)
def test_a_locale_without_utf_8(plainly_said: dict[str, tuple[int, str, str]], name: str) -> None:
    check(PLAIN[name], *plainly_said[name])
