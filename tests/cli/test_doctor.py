"""`stepnet doctor`: what there is, what does not work, and what to do about it; tests make each problem."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Generator
from functools import cache
from pathlib import Path
from typing import Any

import llvmlite
import numpy as np
import pytest
from command_line import stepnet
from constants import Constants
from installed_onednn import missing_onednn

import stepnet as sn
from stepnet.cli.report import doctor, problems, trial
from stepnet.compiler.targets.cpu.machine.room import load_llvm
from stepnet.compiler.targets.limits import limit
from stepnet.compiler.targets.onednn import MISSING
from stepnet.compiler.values import packages
from stepnet.errors import LibraryError

TOO_OLD = "llvmlite 0.44.0 is installed, and stepnet needs 0.46 or later"
NAMES = [package.name for package in packages.PACKAGES]
ENGINES = ["llvm", "onednn", "interpret", "cuda", "cuda-emulated"]


@pytest.fixture
def try_alone(tried_by: Callable[[Callable[[str], str | None]], None]) -> Callable[..., None]:
    """A function that has the engines of some names tried, each once; others are not tried, and work."""
    tried = cache(trial.try_engine)
    return lambda *names: tried_by(lambda name: tried(name) if name in names else None)


@pytest.fixture
def own_limits(same_threads: None) -> Generator[None]:
    """The limits of threads are read anew, and once more after the test; no number of threads is set."""
    sn.set_threads(None)
    limit.cache_clear()
    yield
    limit.cache_clear()


def found() -> tuple[int, dict[str, Any]]:
    """The exit code and the facts; the text says the same problems."""
    code, stdout, _ = stepnet("doctor", "--json")
    facts = json.loads(stdout)
    assert facts["works"] == (code == 0) == (not any(each["needed"] for each in facts["problems"]))
    said = doctor.health_text(
        doctor.Health(
            **{name: value for name, value in facts.items() if name not in ("works", "problems")},
            problems=tuple(problems.Problem(**each) for each in facts["problems"]),
        )
    )
    for each in facts["problems"]:
        kind = "error" if each["needed"] else "warning"
        assert f"\n  {kind:<12}{each['what']}\n              {each['cure']}" in said
    assert said.endswith("\n\nno problems found") == (not facts["problems"])
    return code, facts


def of(facts: dict[str, Any], *parts: str) -> problems.Problem:
    """The one problem that says all these parts."""
    (each,) = [one for one in facts["problems"] if all(part in one["what"] for part in parts)]
    return problems.Problem(**each)


def fake(folder: Path, version: str, binding: str) -> None:
    """A llvmlite, whose binding does nothing but this."""
    for name, text in (
        ("llvmlite/__init__.py", f"__version__ = {version!r}"),
        ("llvmlite/ir.py", ""),
        ("llvmlite/binding/__init__.py", binding),
        (
            f"llvmlite-{version}.dist-info/METADATA",
            f"Metadata-Version: 2.1\nName: llvmlite\nVersion: {version}\n",
        ),
    ):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


# ---- what there is -----------------------------------------------------------------------------------------


def test_it_says_what_there_is_and_that_it_works(try_alone: Callable[..., None]):
    try_alone(*ENGINES)
    code, facts = found()
    assert code == 0
    assert facts["stepnet"] == sn.__version__
    assert facts["packages"]["numpy"] == np.__version__
    assert list(facts["packages"]) == NAMES
    assert list(facts["engines"]) == ENGINES
    assert facts["engines"]["llvm"] is facts["engines"]["interpret"] is None
    assert facts["engines"]["onednn"] == missing_onednn()
    assert facts["threads"] >= 1
    assert any(target.startswith("generic") for target in facts["targets"])
    assert facts["ready_made"] == doctor.ready_made.state()
    code, stdout, _ = stepnet("doctor")
    assert code == 0
    assert f"\nready-made    {facts['ready_made']}\n" in stdout
    assert f"  numpy       {np.__version__}\n" in stdout
    assert "  llvm        works\n" in stdout
    assert f"code for      {facts['targets'][0]}\n" in stdout


@pytest.mark.parametrize("package", packages.PACKAGES, ids=NAMES)
def test_a_package_that_is_missing(package: packages.Package, works: None, monkeypatch: pytest.MonkeyPatch):
    versions = {name: None if name == package.name else "99" for name in NAMES}
    monkeypatch.setattr(doctor, "installed_version", versions.get)
    code, facts = found()
    if package.extra is None:
        assert code == 1
        assert of(facts) == problems.Problem(True, f"{package.name} is not installed", package.command)
    else:
        assert (code, facts["problems"]) == (0, [])
        assert facts["missing"] == {package.name: f'pip install "stepnet[{package.extra}]"'}
        says = f'  {package.name:<12}not installed: pip install "stepnet[{package.extra}]"\n'
        assert says in stepnet("doctor")[1]


@pytest.mark.parametrize("package", packages.PACKAGES, ids=NAMES)
def test_a_package_that_is_too_old(package: packages.Package, works: None, monkeypatch: pytest.MonkeyPatch):
    versions = {name: "0.0.9" if name == package.name else "99" for name in NAMES}
    monkeypatch.setattr(doctor, "installed_version", versions.get)
    code, facts = found()
    assert code == (package.extra is None)
    what = f"{package.name} 0.0.9 is installed, and stepnet needs {package.floor} or later"
    assert of(facts) == problems.Problem(package.extra is None, what, package.command)


def test_onednn_that_is_missing_is_no_problem(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(doctor, "try_engine", {"onednn": MISSING}.get)
    code, facts = found()
    assert code == 0
    assert facts["missing"]["onednn"] == 'pip install "stepnet[onednn]"'
    assert '  onednn      not installed: pip install "stepnet[onednn]"\n' in stepnet("doctor")[1]


# ---- engines that do not work ------------------------------------------------------------------------------


def test_llvmlite_that_is_too_old(
    tmp_path: Path, try_alone: Callable[..., None], monkeypatch: pytest.MonkeyPatch
):
    fake(tmp_path, "0.44.0", "raise AssertionError('it is imported')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(packages, "find_spec", lambda name: None)
    try_alone("llvm", "interpret")
    code, facts = found()
    assert code == 1
    assert facts["engines"]["llvm"] == f'{TOO_OLD}: pip install "llvmlite>=0.46"'
    assert facts["engines"]["interpret"] is None
    assert facts["targets"] == []
    assert of(facts) == problems.Problem(True, TOO_OLD, 'pip install "llvmlite>=0.46"')
    assert "code for      nothing, as LLVM does not work\n" in stepnet("doctor")[1]


@pytest.mark.parametrize(
    ("binding", "says"),
    [
        (
            "raise OSError('libllvmlite.so: no such file')",
            "llvmlite 0.99.0 cannot be loaded (libllvmlite.so: no such file); install it again: "
            "pip install --force-reinstall llvmlite==0.99.0",
        ),
        ("import os; os.abort()", "a small recurrence ended its process by SIGABRT"),
        ("raise KeyError('odd')", "a small recurrence ended its process with code 1: KeyError: 'odd'"),
    ],
)
def test_llvmlite_that_is_broken(
    binding: str,
    says: str,
    tmp_path: Path,
    try_alone: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
):
    fake(tmp_path, "0.99.0", binding)
    monkeypatch.syspath_prepend(tmp_path)
    try_alone("llvm")
    code, facts = found()
    assert (code, facts["engines"]["llvm"]) == (1, says)
    problem = of(facts, "the engine llvm does not work: ")
    assert problem.needed
    assert problem.cure.startswith('pip install --force-reinstall "llvmlite>=0.46", or else report it')


def test_results_that_are_wrong(monkeypatch: pytest.MonkeyPatch, constants: Constants):
    constants(trial, MOST=-1.0)
    assert "results of a small recurrence are" in str(trial.refusal("llvm"))
    constants(trial, MOST=1e-5)
    assert trial.refusal("llvm") is None
    right = trial.recurrence

    def wrong(dtype: type[np.floating]) -> sn.RNN:
        made = right(dtype)
        return made if dtype is np.float32 else made.with_params({"W": made.params["W"], "R": np.eye(4)})

    monkeypatch.setattr(trial, "recurrence", wrong)
    assert "off, and 1e-05 is the most" in str(trial.refusal("llvm"))


def test_a_trial_compiles_and_neither_reads_nor_writes_the_cache(cache: Path):
    assert trial.try_engine("llvm") is None
    assert not cache.exists()


def test_a_trial_that_does_not_end(constants: Constants):
    constants(trial, PATIENCE=0.001)
    assert trial.try_engine("llvm") == "a small recurrence took longer than 0.001 seconds"


def test_a_trial_is_of_the_stepnet_that_asks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "stepnet.py").write_text("raise SystemExit('another')")
    (tmp_path / "numpy.py").write_text("raise SystemExit('another')")
    monkeypatch.chdir(tmp_path)
    assert trial.try_engine("interpret") is None


def test_onednn_that_cannot_be_loaded(
    tmp_path: Path, try_alone: Callable[..., None], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("STEPNET_ONEDNN", str(tmp_path / "libdnnl.so.3"))
    try_alone("onednn")
    code, facts = found()
    assert code == 0
    problem = of(
        facts, "the engine onednn does not work", f"{tmp_path}/libdnnl.so.3 cannot be loaded as oneDNN"
    )
    cure = 'pip install "stepnet[onednn]", and unset STEPNET_ONEDNN if it is set'
    assert (problem.needed, problem.cure) == (False, cure)


@pytest.mark.parametrize(
    ("reason", "cure"),
    [
        (
            "the environment variable STEPNET_CPU is 'z80', which is none",
            "unset STEPNET_CPU, or set it as the ",
        ),
        (
            "compiling takes 48 MB more memory: raise its limit (ulimit -v)",
            "raise the limit of memory: ulimit -v",
        ),
        (
            "it is Sunday",
            'pip install --force-reinstall "llvmlite>=0.46", or else report it, with the output of',
        ),
    ],
)
def test_the_cure_is_of_what_is_said(
    reason: str, cure: str, tried_by: Callable[[Callable[[str], str | None]], None]
):
    tried_by({"llvm": reason}.get)
    code, facts = found()
    assert code == 1
    assert of(facts, f"the engine llvm does not work: {reason}").cure.startswith(cure)


# ---- the surroundings --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["OMP_NUM_THREADS", "STEPNET_NUM_THREADS"])
def test_a_number_of_threads_that_is_none(
    name: str, own_limits: None, try_alone: Callable[..., None], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.delenv("STEPNET_NUM_THREADS")
    monkeypatch.setenv(name, "many")
    try_alone("llvm", "interpret")
    code, facts = found()
    assert (code, facts["threads"]) == (1, None)
    problem = of(facts)  # of the engines, which say the same, nothing is said again
    assert problem.what.startswith(f"the environment variable {name} is 'many', but")
    assert problem.cure == f"unset {name}, or set it as the message says"


def test_few_threads_because_of_openmps_variable(
    works: None, own_limits: None, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.delenv("STEPNET_NUM_THREADS")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setattr(problems, "processors", lambda: 8)
    monkeypatch.setattr("os.sched_getaffinity", lambda process: set(range(8)), raising=False)
    code, facts = found()
    assert code == 0
    what = "OMP_NUM_THREADS is 1, so a call uses 1 of 8 processors"
    assert of(facts) == problems.Problem(False, what, "unset OMP_NUM_THREADS, or set STEPNET_NUM_THREADS=8")
    monkeypatch.setenv("STEPNET_NUM_THREADS", "1")  # which is meant
    limit.cache_clear()
    assert found()[1]["problems"] == []


def test_a_cache_that_cannot_be_used(works: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("STEPNET_CACHE", "1")
    tmp_path.chmod(0o755)
    (tmp_path / "file").touch()
    cure = "set STEPNET_CACHE_DIR to a folder of your own with mode 700, or STEPNET_CACHE=0 to do without"
    for folder, why in (
        (tmp_path, f"{tmp_path} is open to others, with mode 755; chmod 700 makes it private"),
        (tmp_path / "file" / "in" / "it", f"{tmp_path}/file/in/it: Not a directory"),
    ):
        monkeypatch.setenv("STEPNET_CACHE_DIR", str(folder))
        code, facts = found()
        assert code == 0
        assert of(facts) == problems.Problem(False, f"compiled code is not kept on disk: {why}", cure)
    monkeypatch.setenv("STEPNET_CACHE", "0")  # which is meant
    assert found()[1]["problems"] == []


@pytest.mark.parametrize(
    ("variable", "value"),
    [("STEPNET_CACHE_MB", "abc"), ("STEPNET_CACHE", "maybe"), ("STEPNET_CACHE_DIR", "here")],
)
def test_settings_of_the_cache_that_are_wrong(
    works: None, monkeypatch: pytest.MonkeyPatch, variable: str, value: str
):
    monkeypatch.setenv("STEPNET_CACHE", "1")
    monkeypatch.setenv(variable, value)
    problem = of(found()[1])
    assert problem.what.startswith(f"compiled code is not kept on disk: {variable} is {value!r}; it is ")
    assert problem.cure == f"unset {variable}, or set it as the message says"


def test_a_cache_of_a_package_in_a_zip_file():
    unknown = "so it cannot be checked that stored values are of this version"
    reason = f"bundle.zip/stepnet/compiler cannot be listed (Not a directory), {unknown}"
    (problem,) = problems.cache_problems(problems.CacheFacts("/cache", reason, 2**28, 0, (), ()))
    assert problem.cure.startswith("install stepnet in a folder that can be listed, which a zip file is not")


def test_a_system_without_shared_memory(
    works: None, monkeypatch: pytest.MonkeyPatch, constants: Constants, tmp_path: Path
):
    constants(doctor, SHARED_MEMORY=tmp_path / "shm")
    monkeypatch.setattr(sys, "platform", "linux")
    code, facts = found()
    assert code == 0
    problem = of(facts, f"{tmp_path}/shm is not a folder that can be written to")
    assert problem.cure.startswith(f"mount -t tmpfs tmpfs {tmp_path}/shm")
    assert not problem.needed
    monkeypatch.setattr(sys, "platform", "darwin")
    assert found()[1]["problems"] == []


# ---- an older llvmlite, wherever it is met -----------------------------------------------------------------


def test_a_call_refuses_an_older_llvmlite(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(llvmlite, "__version__", "0.45.1")
    monkeypatch.setattr(packages, "find_spec", lambda name: None)
    rnn = sn.RNN(lambda x, h, p: (h + 0.123 * x, h + 0.123 * x), {}, memory=3)
    message = 'llvmlite 0.45.1 is installed, and stepnet needs 0.46 or later: pip install "llvmlite>=0.46"$'
    with pytest.raises(LibraryError, match=message):
        rnn(np.ones((2, 3, 3), np.float32))
    outputs, _ = rnn(np.ones((2, 3, 3), np.float32), engine="interpret")
    assert outputs.shape == (2, 3, 3)


def test_no_command_runs_with_an_older_typer():
    code = "import typer; typer.__version__ = '0.12.5'; from stepnet.cli.commands import main; main()"
    done = subprocess.run([sys.executable, "-c", code, "doctor"], capture_output=True, text=True, check=False)
    said = 'typer 0.12.5 is installed, and stepnet needs 0.15.4 or later: pip install "typer>=0.15.4"'
    assert (done.returncode, done.stdout, done.stderr) == (1, "", f"stepnet: {said}\n")


def test_numba_is_upgraded_with_it(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(llvmlite, "__version__", "0.44.0")
    monkeypatch.setattr(packages, "find_spec", lambda name: name == "numba" or None)
    with pytest.raises(LibraryError, match=r': pip install "llvmlite>=0\.46" "numba>=0\.63"$'):
        load_llvm()


@pytest.mark.parametrize(
    ("text", "refused"),
    [
        ("import stepnet, stepnet.layout, stepnet.cells", False),
        ("import stepnet.build", False),
        ("import stepnet.compiler.targets.cpu.writing.code", True),
    ],
)
def test_what_is_imported_with_an_older_llvmlite(text: str, refused: bool, tmp_path: Path):
    fake(tmp_path, "0.44.0", "llvm_version_info = 15, 0, 7")
    (tmp_path / "llvmlite" / "ir.py").write_text("class Module: pass")
    path = os.pathsep.join([str(tmp_path), *sys.path])
    done = subprocess.run(
        [sys.executable, "-c", text], env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True
    )
    last = done.stderr.strip().rpartition("\n")[2]
    assert last.startswith(f"stepnet.errors.LibraryError: {TOO_OLD}: pip install" if refused else "")
    assert (done.returncode != 0) == refused, done.stderr
