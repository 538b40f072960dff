"""Patches for layers of other libraries: none, and that of an installed package."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import stepnet.torch
from stepnet.errors import LibraryError
from stepnet.torch import patches
from stepnet.torch.patches import Origin, Patch, Patched

NONE = (
    "nothing was replaced: the model has no layer or cell of torch.nn that is recurrent, and no patches for "
    "layers of other libraries are installed; a recurrence of your own is a stepnet.torch.Recurrence"
)

WITHOUT = """
import sys
sys.modules["stepnet.torch.patches.transformers"] = None  # importing it is an error
import torch
import stepnet.torch
from stepnet.torch import patches
print(*dir(stepnet.torch))
patches.PATCHES = {}
model = torch.nn.Sequential(torch.nn.GRU(2, 3))
print(stepnet.torch.accelerate(model))
print(tuple(model(torch.zeros(4, 1, 2))[0].shape))
print(stepnet.torch.accelerate(torch.nn.Linear(2, 3)))
"""


def test_stepnet_without_the_patch_for_transformers() -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [" ".join(dir(stepnet.torch)), "0: GRU", "(4, 1, 3)", NONE]


class Sum(torch.nn.Module):
    """A layer of another library: sums over the steps."""

    def forward(self, x: Any) -> Any:
        return x.cumsum(0)


class StepnetSum(Sum):
    """The class that the patch gives to a `Sum`. Its results have the other sign."""

    stepnets = Origin(Sum, ("forward",), ("prepared",))

    def forward(self, x: Any) -> Any:
        self.prepared = -x.cumsum(0)
        return self.prepared


def patched(module: Any, holder: Any) -> Patched | None:
    if not isinstance(module, Sum):
        return None
    assert module in holder.children()
    if module.training:
        return Patched(left={"": "it is in training"})
    return Patched(StepnetSum, {"backward": "it is PyTorch's"})


PATCH = Patch("layer Sum in evaluation", patched)


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An installed package with `PATCH` as its entry point."""
    folder = tmp_path / "sums-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: sums\nVersion: 1.0\n")
    (folder / "entry_points.txt").write_text(
        f"[{patches.GROUP}]\nsums = {__name__}:PATCH\ntransformers = {__name__}:nothing\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    patches.installed.cache_clear()
    yield folder / "entry_points.txt"
    patches.installed.cache_clear()


def test_a_patch_of_an_installed_package(installed: Path) -> None:
    model = torch.nn.ModuleDict({"first": Sum().eval(), "second": Sum(), "gru": torch.nn.GRU(2, 3)})
    x = torch.randn(4, 1, 2)
    expected = model["first"](x)
    done = stepnet.torch.accelerate(model)
    assert type(model["first"]) is StepnetSum
    assert str(done).splitlines() == [
        "first: StepnetSum (forward)",
        "gru: GRU",
        "first.backward: left, it is PyTorch's",
        "second: left, it is in training",
    ]
    assert torch.equal(model["first"](x), -expected)
    again = stepnet.torch.accelerate(model["first"])
    assert again.left == {"": "it is stepnet's already"}
    assert not again.replaced
    done.undo()
    assert type(model["first"]) is Sum
    assert "prepared" not in vars(model["first"])


def test_the_report_on_a_model_without_layers_names_all_patches(installed: Path) -> None:
    assert "no layer of transformers that runs over steps, no layer Sum in evaluation; a recurrence" in str(
        stepnet.torch.accelerate(torch.nn.Linear(2, 3))
    )


class Foreign(torch.nn.Module):
    """A layer from elsewhere, whose forward calls a kernel."""

    def forward(self, x: Any) -> Any:
        return chunk_rwkv7(x)


def chunk_rwkv7(x: Any) -> Any:
    return x


class Hybrid(torch.nn.Module):
    """A model with a configuration as those of transformers."""

    def __init__(self, *layers: Any) -> None:
        super().__init__()
        self.config = SimpleNamespace(layer_types=["linear_attention", "full_attention", "linear_attention"])
        self.layers = torch.nn.ModuleList(layers)


def test_layers_that_only_their_code_or_the_configuration_calls_recurrent_are_reported() -> None:
    attention = torch.nn.Linear(2, 2)
    done = stepnet.torch.accelerate(Hybrid(torch.nn.Linear(2, 2), attention, Foreign()))
    assert str(done).splitlines() == [
        "layers.0: left, the configuration says 'linear_attention', and stepnet knows none of its parts",
        "layers.2: left, it calls chunk_rwkv7, which is no function of transformers",
    ]
    known = Hybrid(torch.nn.GRU(2, 2), attention, torch.nn.Sequential(torch.nn.LSTM(2, 2)))
    assert str(stepnet.torch.accelerate(known)).splitlines() == ["layers.0: GRU", "layers.2.0: LSTM"]
    assert str(stepnet.torch.accelerate(known)).splitlines() == [
        "layers.0: left, it is stepnet's already",
        "layers.2.0: left, it is stepnet's already",
    ]


def test_layers_of_a_configuration_may_have_names() -> None:
    model = Hybrid()
    model.add_module("layers", torch.nn.ModuleDict({"first": torch.nn.Linear(2, 2)}))
    assert list(stepnet.torch.accelerate(model).left) == ["layers.first"]


def test_a_patch_that_cannot_be_imported(installed: Path) -> None:
    installed.write_text(f"[{patches.GROUP}]\nbroken = {__name__}:nothing\n")
    with pytest.raises(LibraryError, match=f"the patch 'broken' cannot be imported from {__name__}:nothing"):
        stepnet.torch.accelerate(torch.nn.Linear(2, 3))
