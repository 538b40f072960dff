"""Makes small wrong changes of the compiler, one at a time, and tells which of them no test notices.

    python tests/mutation/hunt_changes.py                        200 by chance, their seed printed
    python tests/mutation/hunt_changes.py --only tile.py         those of some files
    python tests/mutation/hunt_changes.py --count 200 --seed 7   the same choice again

A process has all libraries loaded and forks for each change: the child runs the tests of the file and
stops at the first that fails. A change survives if none does. `equivalent.txt` says of some why they must.
"""

import argparse
import ast
import importlib.abc
import importlib.util
import os
import random
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import CodeType

# Loaded once, before the forks.
import llvmlite.binding
import llvmlite.ir  # noqa: F401
import ml_dtypes  # noqa: F401
import mpmath  # noqa: F401
import pytest
from changes import Change, changes

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "stepnet"
EQUIVALENT = Path(__file__).with_name("equivalent.txt")
SECONDS, LATEST, MEMORY = 240, 3600, 8 * 2**30  # of processor time, of any time, bytes
GENERATED = (
    "tests/compiler/targets/cpu/test_tile.py",
    "tests/compiler/targets/cpu/test_llvm.py",
    "tests/compiler/targets/cpu/test_llvm_unusual.py",
)
PASSES = (
    "tests/compiler/plan/passes/test_passes.py",
    "tests/compiler/plan/test_plan.py",
    "tests/compiler/targets/cpu/test_llvm.py",
    "tests/model/test_recurrence.py",
)
# The tests of each file: those that are quick and likely to fail come first.
TESTS: dict[str, Sequence[str]] = {
    "compiler/plan/passes/*.py": PASSES,
    "compiler/plan/passes/lift.py": ("tests/model/test_nested.py", "tests/model/test_builder_nested.py"),
    "compiler/plan/plan.py": PASSES,
    "compiler/plan/stages.py": PASSES,
    **{
        f"compiler/plan/{name}.py": (
            "tests/compiler/plan/test_plan.py",
            "tests/model/test_nested.py",
            "tests/model/test_builder_nested.py",
        )
        for name in ("schedule", "cutting")
    },
    **dict.fromkeys(
        (
            *("compiler/plan/apart.py", "compiler/plan/labels.py", "compiler/plan/matrix_rule.py"),
            "compiler/plan/passes/read_before.py",
        ),
        ("tests/compiler/targets/cuda/test_chunks.py",),
    ),
    "compiler/plan/passes/divide.py": ("tests/compiler/targets/cuda/test_divided.py",),
    "compiler/plan/groups.py": (
        "tests/model/test_nested.py",
        "tests/model/test_builder_nested.py",
        "tests/model/test_runs.py",
    ),
    "compiler/plan/totals.py": ("tests/model/test_runs.py", "tests/model/gradients/test_gradients.py"),
    "compiler/plan/passes/merge.py": ("tests/compiler/targets/cpu/test_products.py", *PASSES),
    "compiler/plan/passes/narrow.py": (
        "tests/compiler/targets/cpu/test_encoded_weights.py",
        "tests/model/graph/test_quantize_layers.py",
    ),
    "compiler/plan/passes/split_concat_matmul.py": ("tests/compiler/targets/cpu/test_products.py", *PASSES),
    "compiler/grad/*.py": ("tests/compiler/grad/test_adjoints.py", "tests/model/gradients/test_gradients.py"),
    "compiler/grad/handover.py": (
        "tests/compiler/grad/test_handover.py",
        "tests/model/gradients/test_gradients.py",
    ),
    "compiler/targets/cpu/running/sums.py": ("tests/compiler/targets/cpu/test_sums.py",),
    "compiler/targets/cpu/running/contract_sums.py": ("tests/compiler/targets/cpu/test_contract.py",),
    **{
        f"compiler/targets/cpu/running/{name}.py": (
            "tests/compiler/targets/cpu/test_across.py",
            "tests/build",
        )
        for name in ("across", "across_code")
    },
    "compiler/targets/cpu/running/refill.py": ("tests/model/test_runs.py",),
    "compiler/targets/cpu/running/freezing.py": ("tests/model/stored/test_ready_models.py",),
    "compiler/native/*.py": ("tests/model/stored/test_ready_models.py",),
    "compiler/native/ready_made.py": ("tests/model/stored/test_ready_made.py",),
    "compiler/disk/weights.py": ("tests/model/stored/test_ready_made.py",),
    **{f"compiler/native/{name}.py": GENERATED for name in ("call_words", "spaces")},
    **{
        f"compiler/targets/cpu/*/{name}.py": GENERATED
        for name in (
            *("cells", "code", "driven", "emit", "generate", "lines", "loops", "lowered"),
            "lowering",
            *(
                "machine_code",
                "pointwise",
                "product",
                "program",
                "records",
                "refusals",
                "rowwise",
                "stage",
                "processor",
            ),
            *("tile", "tile_place", "tiles", "tiling", "units"),
        )
    },
    **{
        f"compiler/targets/cpu/*/{name}.py": ("tests/compiler/targets/cpu/test_step_places.py", *GENERATED)
        for name in ("constants", "copies", "timetable", "transfers")
    },
    "compiler/targets/cpu/engine.py": GENERATED,
    "compiler/targets/cpu/costs.py": ("tests/compiler/plan/test_partition.py",),
    "compiler/targets/cpu/rates.py": ("tests/cli/test_tune.py",),
    **{
        f"compiler/targets/cpu/*/{name}.py": (
            "tests/compiler/targets/cpu/test_rates.py",
            "tests/cli/test_tune.py",
        )
        for name in ("exchanges", "exchanges_code", "reads", "reads_code")
    },
    "compiler/plan/calibration.py": ("tests/compiler/plan/test_calibration.py",),
    **{
        f"compiler/targets/cpu/{name}.py": (
            "tests/compiler/plan/test_inner_sequences.py",
            "tests/compiler/plan/test_attention.py",
        )
        for name in ("emit/lane_loops", "emit/word_reductions", "lower/segments", "lower/fusion")
    },
    "compiler/targets/cpu/machine/room.py": (
        "tests/compiler/targets/cpu/test_object_code.py",
        "tests/interface/test_processes.py",
    ),
    "compiler/targets/cpu/library/*.py": ("tests/build", "tests/compiler/targets/cpu/library"),
    "compiler/targets/cpu/machine/elf.py": ("tests/build", "tests/compiler/disk/test_warm_start.py"),
    "compiler/targets/cpu/running/arrangement.py": (
        "tests/compiler/targets/cpu/test_wavefront.py",
        "tests/compiler/targets/cpu/test_chain.py",
    ),
    **{
        f"{name}.py": ("tests/compiler/targets/cpu/test_fibers.py", "tests/compiler/plan/test_plan.py")
        for name in (
            *("compiler/plan/fibers", "compiler/plan/phases", "compiler/plan/views"),
            *("compiler/targets/cpu/emit/fibers", "compiler/targets/cpu/emit/stretches"),
            *(f"compiler/targets/cpu/lower/{name}" for name in ("fiber_loop", "fibers", "memories")),
        )
    },
    "compiler/targets/cpu/products/matrix.py": ("tests/compiler/targets/cpu/test_matrix.py",),
    **{
        f"compiler/native/{name}.py": (
            "tests/compiler/targets/cpu/test_matrix.py",
            "tests/compiler/targets/cpu/test_instruction_sets.py",
        )
        for name in ("amx", "arm")
    },
    "compiler/targets/cpu/emit/inner_recurrence.py": ("tests/compiler/plan/test_inner_recurrences.py",),
    **{
        f"compiler/targets/cpu/machine/{name}.py": ("tests/compiler/targets/cpu/test_object_code.py",)
        for name in ("object_code", "unlocked")
    },
    **{
        f"compiler/targets/cpu/{name}.py": (
            "tests/compiler/targets/cpu/test_early_ends.py",
            "tests/model/test_control.py",
        )
        for name in ("emit/early", "running/ending")
    },
    **{
        f"model/{name}.py": (
            "tests/model/generation/test_written.py",
            "tests/model/generation/test_generate.py",
        )
        for name in (
            "beam_steps",
            "by_symbol",
            "feedback",
            "feeds",
            "one_step",
            "samplers",
            "decoder",
            "compiled_generation",
        )
    },
    **{
        f"compiler/targets/cpu/emit/{name}.py": (
            "tests/compiler/targets/cpu/test_step_places.py",
            "tests/compiler/targets/cpu/test_driver.py",
            "tests/compiler/targets/cpu/test_workers.py",
            *GENERATED,
        )
        for name in ("block", "driver_code", "thread_code")
    },
    **{
        f"compiler/targets/cpu/*/{name}.py": (
            "tests/compiler/targets/cpu/test_maths.py",
            "tests/compiler/targets/cpu/test_llvm_unusual.py",
        )
        for name in ("elementary", "hyperbolic", "maths", "powers", "quarters", "series", "trigonometry")
    },
    **{
        f"compiler/targets/cpu/*/{name}.py": (
            "tests/compiler/plan/test_totals.py",
            "tests/compiler/targets/test_parts.py",
            "tests/model/gradients/test_prepared_gradients.py",
            *GENERATED,
        )
        for name in ("finish", "finish_tasks", "form", "needs")
    },
    **{
        f"compiler/targets/cpu/*/{name}.py": (
            "tests/compiler/targets/cpu/test_workers.py",
            "tests/model/test_frozen.py",
            *GENERATED,
        )
        for name in (
            *("call_code", "compiled", "handover", "handover_code", "system_code", "waiting"),
            *("workers", "workspace"),
        )
    },
    **{
        f"compiler/targets/cpu/running/{name}.py": (
            "tests/model/streams/test_step_blocks.py",
            "tests/model/streams/test_stream_rows.py",
            "tests/model/streams/test_stream.py",
            "tests/compiler/targets/cpu/test_workers.py",
        )
        for name in ("steps", "steps_code")
    },
    **{
        f"compiler/targets/cpu/running/{name}.py": ("tests/model/test_empty_sequences.py",)
        for name in ("idle", "idle_code")
    },
    "compiler/targets/cpu/running/run.py": (
        *(
            "tests/compiler/targets/cpu/test_workers.py",
            "tests/model/test_frozen.py",
            "tests/compiler/plan/test_totals.py",
        ),
        *GENERATED,
    ),
    **{
        f"compiler/targets/cpu/*/{name}.py": (
            *("tests/compiler/targets/cpu/test_contract.py", "tests/compiler/targets/cpu/test_pack.py"),
            *("tests/model/test_with_params.py", "tests/compiler/plan/test_totals.py"),
        )
        for name in ("contract", "contract_code", "memory", "pack", "pack_code", "vectors_code")
    },
    "compiler/disk/model_files.py": ("tests/onnx/test_onnx_kept.py",),
    "compiler/disk/access.py": ("tests/compiler/disk/test_access.py",),
    **{
        f"{name}.py": ("tests/compiler/disk/test_store.py", "tests/compiler/disk/test_warm_start.py")
        for name in (
            *(
                "compiler/disk/data",
                "compiler/disk/entry",
                "compiler/disk/folder",
                "compiler/disk/overview",
                "compiler/disk/settings",
                "compiler/disk/sources",
            ),
            *("compiler/disk/store", "compiler/plan/stored_schedule"),
            *(f"compiler/targets/cpu/*/{name}" for name in ("image", "lazy", "stored_code", "stored_plan")),
        )
    },
    **{
        f"compiler/targets/cpu/*/{name}.py": (
            "tests/compiler/targets/cpu/test_encoded_weights.py",
            "tests/compiler/targets/cpu/test_instruction_sets.py",
            *GENERATED,
        )
        for name in ("arithmetic", "arm_instructions", "encode")
    },
    **{
        f"compiler/targets/cpu/*/{name}.py": (
            "tests/compiler/targets/cpu/test_chain.py",
            "tests/compiler/targets/cpu/test_workers.py",
            "tests/compiler/targets/cpu/test_call_block.py",
            "tests/model/test_call_progress.py",
            "tests/model/test_frozen.py",
            "tests/model/test_any_lengths.py",
            *GENERATED,
        )
        for name in (
            *(
                "prepared_tasks",
                "chain",
                "prepared_chain",
                "chain_call",
                "chain_arrays",
                "new_arrays",
                "between",
                "lengths",
                "lengths_code",
                "word_code",
            ),
            *("call_block", "call_block_code"),
            *("sequence_layout", "native"),
        )
    },
    **{
        f"compiler/targets/cpu/*/{name}.py": ("tests/torch/test_known_calls.py",)
        for name in ("tensors", "tensors_code")
    },
    **{
        f"{name}.py": ("tests/compiler/plan/test_partition.py", "tests/compiler/targets/cpu/test_chain.py")
        for name in (
            "compiler/targets/cpu/lower/loop_load",
            "compiler/plan/load",
            "compiler/plan/partition",
            "compiler/plan/waves",
        )
    },
    "compiler/targets/cpu/lower/latency.py": ("tests/compiler/targets/cpu/test_latency.py",),
    **{
        f"compiler/plan/{name}.py": (
            "tests/compiler/plan/test_inner_sequences.py",
            "tests/model/test_nested.py",
        )
        for name in ("inner", "inner_sequences", "passes/columns")
    },
    **{
        f"compiler/targets/cpu/running/{name}.py": ("tests/compiler/targets/cpu/test_schedule_block.py",)
        for name in (
            "block_arrays",
            "block_writer",
            "schedule_block",
            "prepared_layouts",
            "moves",
            "moves_code",
        )
    },
    "compiler/targets/cpu/lower/totals.py": ("tests/compiler/targets/cpu/test_sums.py",),
    **{
        f"compiler/targets/cpu/running/pairs{name}.py": (
            "tests/compiler/targets/cpu/test_pairs.py",
            "tests/compiler/targets/cpu/test_pairs_groups.py",
            "tests/model/test_attention.py",
        )
        for name in ("", "_addresses", "_code", "_copies", "_form", "_rows", "_sums")
    },
    "compiler/plan/pairs.py": (
        "tests/compiler/targets/cpu/test_pairs_groups.py",
        "tests/model/test_attention.py",
    ),
    "compiler/targets/cpu/running/sums_code.py": ("tests/compiler/targets/cpu/test_sums.py",),
    **{
        f"compiler/targets/cpu/emit/{name}.py": ("tests/compiler/targets/cpu/test_claims.py", *GENERATED)
        for name in ("claims", "unit_groups")
    },
    "compiler/targets/cpu/emit/tile_sums.py": (
        "tests/compiler/targets/cpu/test_fetched_ahead.py",
        *GENERATED,
    ),
    "compiler/targets/cpu/emit/scans.py": ("tests/compiler/targets/cpu/test_scans.py",),
    "compiler/targets/cpu/writing/storage_dtypes.py": ("tests/compiler/targets/cpu/test_stored_code.py",),
    "compiler/targets/cpu/lower/stage.py": ("tests/compiler/targets/cpu/test_phases.py", *GENERATED),
    "compiler/targets/cpu/emit/reductions.py": ("tests/compiler/targets/cpu/test_scans.py", *GENERATED),
}


@dataclass(frozen=True)
class Verdict:
    """The outcome of a change: seen by a test, or survived; and the seconds."""

    path: Path
    change: Change
    ended: str
    seconds: float

    @property
    def survived(self) -> bool:
        """True if no test failed."""
        return self.ended == "survived"


def tests_of(path: Path) -> Sequence[str]:
    """The tests that concern a file: those of the last row that it matches."""
    name = path.relative_to(SOURCE)
    return [tests for pattern, tests in TESTS.items() if name.match(pattern)][-1]


def candidates(only: Sequence[str]) -> Iterator[tuple[Path, Change]]:
    """Every change there is, of the files of these names."""
    paths = dict.fromkeys(path for pattern in TESTS for path in sorted(SOURCE.glob(pattern)))
    for path in paths:
        if not only or path.name in only:
            for change in changes(path.name, path.read_text(encoding="utf-8")):
                yield path, change


class Changed(importlib.abc.MetaPathFinder, importlib.abc.InspectLoader):
    """A finder of modules that returns one of them changed."""

    def __init__(self, path: Path, tree: ast.Module) -> None:
        self.path, self.tree = path, tree
        self.name = ".".join(path.relative_to(SOURCE.parent).with_suffix("").parts).removesuffix(".__init__")

    def find_spec(self, fullname: str, path: object, target: object = None) -> ModuleSpec | None:
        if fullname != self.name:
            return None
        package = self.path.name == "__init__.py"
        return importlib.util.spec_from_file_location(
            fullname,
            self.path,
            loader=self,
            submodule_search_locations=[str(self.path.parent)] if package else None,
        )

    def get_code(self, fullname: str) -> CodeType:
        return compile(self.tree, str(self.path), "exec")

    def get_source(self, fullname: str) -> str:
        return self.path.read_text(encoding="utf-8")


def tested(path: Path, tree: ast.Module) -> int:
    """Runs the tests of a file that was changed; gives 0 if all pass. Called in a child, which ends then."""
    import resource

    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
    sys.meta_path.insert(0, Changed(path, tree))
    return int(pytest.main(["-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", *tests_of(path)]))


@dataclass(frozen=True)
class Child:
    """A process that tests a change since some time."""

    path: Path
    change: Change
    begun: float

    def verdict(self, status: int, late: bool) -> Verdict:
        """The outcome of the change, by how the process ended."""
        code = os.waitstatus_to_exitcode(status)
        late = late or code in (-signal.SIGXCPU, -signal.SIGKILL)
        ended = "too long" if late else {0: "survived", 1: "seen"}.get(code, f"seen: exit code {code}")
        return Verdict(self.path, self.change, ended, time.monotonic() - self.begun)


def begun(path: Path, change: Change) -> int:
    """The process that tests a change."""
    process = os.fork()
    if process:
        return process
    try:
        os.setpgid(0, 0)
        os._exit(tested(path, change.made(path.read_text(encoding="utf-8"))))
    finally:
        os._exit(70)


def verdicts(chosen: Sequence[tuple[Path, Change]], workers: int) -> Iterator[Verdict]:
    """Yields the verdict of each change as it ends; some changes are tested at the same time."""
    left, running = list(reversed(chosen)), dict[int, Child]()
    while left or running:
        while left and len(running) < workers:
            path, change = left.pop()
            running[begun(path, change)] = Child(path, change, time.monotonic())
        time.sleep(0.05)
        for process, child in tuple(running.items()):
            late = time.monotonic() - child.begun > LATEST
            if late:
                os.killpg(process, signal.SIGKILL)
            ended, status = os.waitpid(process, 0 if late else os.WNOHANG)
            if ended:
                del running[process]
                yield child.verdict(status, late)


def equivalent() -> dict[str, str]:
    """Why some changes change nothing that could be seen: a change, `   # ` and the reason in each line."""
    lines = EQUIVALENT.read_text(encoding="utf-8").splitlines()
    rows = (line.split("   # ", 1) for line in lines if line and not line.startswith("#"))
    return dict(rows)


def main() -> int:
    """Hunts, and prints what survived."""
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--count", type=int, default=200)
    options.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(3), "big"))
    options.add_argument("--only", nargs="*", default=[], help="names of files")
    options.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    asked = options.parse_args()
    os.chdir(ROOT)
    known = equivalent()
    everything = [one for one in candidates(asked.only) if str(one[1]) not in known]
    chosen = random.Random(asked.seed).sample(everything, min(asked.count, len(everything)))
    print(
        f"{len(chosen)} of {len(everything)} changes, {len(known)} more are equivalent; seed {asked.seed}",
        flush=True,
    )
    survived = 0
    for number, one in enumerate(verdicts(chosen, asked.workers), 1):
        survived += one.survived
        if one.survived or one.ended == "too long":
            print(
                f"{number}: {one.ended}, {one.seconds:.0f} s, line {one.change.line}: {one.change}",
                flush=True,
            )
        else:
            print(f"{number}: {one.ended}", end="\r", flush=True)
    print(f"{survived} of {len(chosen)} survived")
    return 1 if survived else 0


if __name__ == "__main__":
    sys.exit(main())
