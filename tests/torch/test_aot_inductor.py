"""AOTInductor compiles programs: with stepnet's operator for this process, without it for any."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

import stepnet.torch
from tests.torch.layer_cases import assert_same
from tests.torch.torch_tools import KINDS, sequences

pytestmark = pytest.mark.filterwarnings("ignore")  # those of torch's compiler about itself

QUICK = {"cpp_cache_precompile_headers": False, "cpp.simdlen": 1}
ELSEWHERE = """
import sys, torch
program = torch._inductor.aoti_load_package(sys.argv[1])
torch.save(program(torch.load(sys.argv[2]))[0], sys.argv[3])
assert not any(name.startswith("stepnet") for name in sys.modules)
"""


@pytest.mark.long
@pytest.mark.parametrize(("kind", "plain"), [("layers", False), ("layers", True), ("Recurrence", True)])
def test_a_compiled_program(kind: str, plain: bool, tmp_path: Path, request: pytest.FixtureRequest):
    if not request.config.getoption("--long"):
        pytest.skip("--long is missing: PyTorch's compiler of C++ takes half a minute")
    module, x, compiled = KINDS[kind].make(), sequences(7, 3), str(tmp_path / "program.pt2")
    dims = {0: torch.export.Dim("time"), 1: torch.export.Dim("batch")}
    with torch.no_grad():
        program = torch.export.export(module, (sequences(),), dynamic_shapes=(dims,))
        if plain:
            program = program.run_decompositions(stepnet.torch.decompositions())
        torch._inductor.aoti_compile_and_package(program, package_path=compiled, inductor_configs=QUICK)
    if plain:
        paths = tmp_path / "x.pt", tmp_path / "y.pt"
        torch.save(x, paths[0])
        command = [sys.executable, "-W", "ignore", "-c", ELSEWHERE, compiled, *map(str, paths)]
        subprocess.run(command, check=True)
        found = torch.load(paths[1])
    else:
        found = torch._inductor.aoti_load_package(compiled)(x)[0]
    assert_same({"": found}, {"": module(x)[0].detach()})
