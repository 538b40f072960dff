"""Finding and loading oneDNN: what is missing, or of another kind, is a reason; failures have names."""

import ctypes
import gc
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from stepnet.compiler.targets.onednn import MISSING, OneDnnLibrary
from stepnet.compiler.targets.onednn import library as libraries
from stepnet.compiler.targets.onednn.interface import FUNCTIONS, STATUSES
from stepnet.compiler.targets.onednn.library import (
    VARIABLE,
    check_descriptors,
    failure,
    library,
    open_library,
)
from stepnet.compiler.targets.onednn.objects import OwnedHandle, memory_descriptor
from stepnet.errors import LibraryError, RefusedError


def compiled(
    folder: Path, major: int, runtime: int, functions: Any = FUNCTIONS, engine_status: int = 0
) -> str:
    """A library with oneDNN's functions that does nothing but say its version."""
    source = folder / "stub.c"
    lines = [
        "typedef struct { int major, minor, patch; const char *commit; unsigned cpu, gpu; } Version;",
        f'static Version version = {{ {major}, 9, 1, "x", {runtime}, 0 }};',
        *(
            "const void *dnnl_version(void) { return &version; }"
            if n == "dnnl_version"
            else f"long {n}(void) {{ return {engine_status if n == 'dnnl_engine_create' else 0}; }}"
            for n in functions
        ),
    ]
    source.write_text("\n".join(lines))
    target = folder / "libdnnl.so.3"
    try:
        subprocess.run(["cc", "-shared", "-fPIC", "-o", target, source], check=True, capture_output=True)
    except FileNotFoundError:
        pytest.skip("there is no C compiler")
    return str(target)


def test_another_version(tmp_path: Path):
    with pytest.raises(LibraryError, match=r"is oneDNN 2\.9\.1, and stepnet calls version 3"):
        open_library(compiled(tmp_path, 2, 2))


def test_a_build_for_sycl(tmp_path: Path):
    with pytest.raises(
        LibraryError, match=r"is oneDNN 3\.9\.1 built for SYCL, which finds no processor here; pip install"
    ):
        open_library(compiled(tmp_path, 3, 512))


def test_a_library_without_an_engine(tmp_path: Path):
    with pytest.raises(LibraryError, match="finds no processor: runtime_error"):
        open_library(compiled(tmp_path, 3, 2, engine_status=STATUSES.index("runtime_error")))


def test_a_library_without_a_function(tmp_path: Path):
    functions = [name for name in FUNCTIONS if name != "dnnl_augru_backward_primitive_desc_create"]
    with pytest.raises(LibraryError, match="no function dnnl_augru_backward_primitive_desc_create"):
        open_library(compiled(tmp_path, 3, 2, functions))


def test_constants_that_mean_something_else(tmp_path: Path):
    with pytest.raises(LibraryError, match=r"interprets the description float16\[2, 3, 5\] differently"):
        open_library(compiled(tmp_path, 3, 2))


def test_no_library(tmp_path: Path):
    with pytest.raises(LibraryError, match="cannot be loaded as oneDNN"):
        open_library(str(tmp_path / "libdnnl.so.3"))
    (tmp_path / "text.so").write_text("no library")
    with pytest.raises(LibraryError, match="cannot be loaded as oneDNN"):
        open_library(str(tmp_path / "text.so"))


def test_nothing_installed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(libraries, "candidates", lambda: iter(()))
    with pytest.raises(LibraryError) as error:
        libraries.load_library.__wrapped__("")
    assert str(error.value) == MISSING
    assert 'pip install "stepnet[onednn]"' in MISSING
    assert VARIABLE in MISSING


def test_no_package_is_proposed_where_there_is_none():
    assert libraries.how_to_install(True, "libdnnl.so.3") == 'pip install "stepnet[onednn]"'
    said = libraries.how_to_install(False, "dnnl.dll")
    assert said.startswith(
        "build oneDNN 3, of which there is no package for this machine, and set STEPNET_ONEDNN"
    )
    assert said.endswith("its dnnl.dll")


def test_the_variable_and_the_argument_name_a_library(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(VARIABLE, "/nowhere/libdnnl.so.3")
    with pytest.raises(LibraryError, match=r"/nowhere/libdnnl\.so\.3 cannot be loaded"):
        library()
    with pytest.raises(LibraryError, match="/elsewhere cannot be loaded"):
        library("/elsewhere")


def test_the_constants_are_those_of_the_library(dnnl: OneDnnLibrary):
    check_descriptors(dnnl)
    assert dnnl.version[0] == 3
    assert str(dnnl).startswith(f"oneDNN 3.{dnnl.version[1]}")


def test_statuses_have_their_names(dnnl: OneDnnLibrary):
    with pytest.raises(
        LibraryError, match="says invalid_arguments to dnnl_memory_desc_create_with_tag, asked for a memory"
    ):
        memory_descriptor(dnnl, (-2, 3, 5), "float32")
    refused = failure(dnnl, "f", STATUSES.index("unimplemented"), "a thing")
    assert isinstance(refused, RefusedError)
    assert "says unimplemented to f, asked for a thing" in str(refused)
    assert "status 99" in str(failure(dnnl, "f", 99, ""))


def test_objects_are_freed_with_their_owners(dnnl: OneDnnLibrary, monkeypatch: pytest.MonkeyPatch):
    freed: list[Any] = []
    monkeypatch.setattr(dnnl.functions, "dnnl_memory_desc_destroy", freed.append)
    made = memory_descriptor(dnnl, (2, 3, 5), "float32")
    handle = made.handle
    assert not freed
    del made
    gc.collect()
    assert freed == [handle]
    real = ctypes.CDLL(dnnl.path).dnnl_memory_desc_destroy
    real.argtypes = [ctypes.c_void_p]
    assert real(handle) == 0


def test_an_owner_holds_its_library(dnnl: OneDnnLibrary):
    made = memory_descriptor(dnnl, (2, 3, 5), "float32")
    assert isinstance(made, OwnedHandle)
    assert made.library is dnnl


FORK = """
import os, sys
import numpy as np
from stepnet import onednn
from stepnet.errors import LibraryError
weights = np.ones((3, 15), "f4"), np.ones((5, 15), "f4")
onednn.fusion_gru(np.ones((2, 4, 3), "f4"), None, *weights)
child = os.fork()
if child == 0:
    try:
        onednn.fusion_gru(np.ones((2, 4, 3), "f4"), None, *weights)
    except LibraryError as error:
        os._exit(0 if "before this process was forked" in str(error) else 2)
    os._exit(1)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_forked_process_is_told(dnnl: OneDnnLibrary):
    subprocess.run([sys.executable, "-c", FORK], check=True, timeout=240)


CROWD = """
import numpy as np
import stepnet as sn
from stepnet import onednn
weight_x, weight_h = np.ones((8, 48), "float32"), np.ones((16, 48), "float32") / 16
layer = onednn.gru_layer(weight_x, weight_h)
x = np.linspace(-1, 1, 4 * 30 * 8, dtype="float32").reshape(4, 30, 8)
few = layer(x)[0]
sn.set_threads(10**6)
many, _, pullback = layer.vjp(x)
pullback(many)
np.testing.assert_array_equal(layer(x)[0], few)
np.testing.assert_array_equal(many, few)
"""


def test_more_threads_than_processors(dnnl: OneDnnLibrary):
    """OpenMP ends the process where it is told to start more threads than it can."""
    done = subprocess.run(
        [sys.executable, "-c", CROWD], capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr
