"""Models in several files and in archives of PyTorch's libraries: the whole model is read, or none."""

import gzip
import json
import os
import tarfile
import warnings
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from command_line import refusal, stepnet
from containers import Array, assert_same
from safetensors.torch import save_file

from stepnet.errors import FileError
from stepnet.layout.files import kind, read

INPUTS, HIDDEN = 2, 3


class Net(torch.nn.Module):
    """A small model with a recurrent layer of each kind."""

    def __init__(self):
        super().__init__()
        self.encoder = torch.nn.GRU(INPUTS, HIDDEN, batch_first=True)
        self.decoder = torch.nn.LSTM(HIDDEN, HIDDEN, batch_first=True, bidirectional=True)
        self.head = torch.nn.Linear(2 * HIDDEN, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.decoder(self.encoder(x)[0])[0])


@pytest.fixture(scope="module")
def net() -> Net:
    torch.manual_seed(0)
    return Net().eval()


def arrays(net: Net) -> dict[str, Array]:
    return {name: tensor.numpy() for name, tensor in net.state_dict().items()}


def held(path: Path) -> dict[str, Array]:
    """All arrays of a file, by its own names."""
    model = read(path)
    modules = {name: module.arrays[own] for module in model.modules for own, name in module.names.items()}
    return {**modules, **model.rest}


def whole(path: Path, net: Net) -> None:
    """A file is the whole model: every array, and its layers can become Keras' and compute the same."""
    found, given = held(path), arrays(net)
    assert_same({name: found[name] for name in given}, given)
    assert len(found) == len(given)
    out = path.parent / "out.safetensors" if path.parent.is_dir() else path.with_suffix(".safetensors")
    code, _, stderr = stepnet(
        "convert", path, "--to", "keras", "-o", out.with_suffix(".npz"), "--verify", "--force"
    )
    assert code == 0, stderr
    out.with_suffix(".npz").unlink()


# ---- shards ------------------------------------------------------------------------------------------------


def sharded(folder: Path, net: Net, ending: str) -> Path:
    """A model in two files with an index, as save_pretrained writes them."""
    state = net.state_dict()
    stem = "model" if ending == "safetensors" else "pytorch_model"
    names = [f"{stem}-{number:05d}-of-00002.{ending}" for number in (1, 2)]
    halves = [dict(list(state.items())[:6]), dict(list(state.items())[6:])]
    for name, half in zip(names, halves, strict=True):
        save_file(half, folder / name) if ending == "safetensors" else torch.save(half, folder / name)
    places = {key: name for name, half in zip(names, halves, strict=True) for key in half}
    index = folder / f"{stem}.{ending}.index.json"
    index.write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": places}))
    return index


@pytest.mark.parametrize("ending", ["safetensors", "bin"])
def test_an_index_or_any_shard_is_the_whole_model(tmp_path: Path, net: Net, ending: str):
    index = sharded(tmp_path, net, ending)
    shards = sorted(path for path in tmp_path.iterdir() if path != index)
    assert len(shards) == 2
    for path in (index, *shards):
        assert kind(path).title == "model in shards"
        whole(path, net)


@pytest.mark.parametrize("ending", ["safetensors", "bin"])
def test_a_shard_without_its_index_is_refused(tmp_path: Path, net: Net, ending: str):
    index = sharded(tmp_path, net, ending)
    index.unlink()
    for shard in list(tmp_path.iterdir()):
        assert refusal("show", shard) == (
            f"{shard}: this is one of 2 files of a model, and there is no {index.name} beside it, "
            "which says what is in the others; put it and all of them into one folder"
        )


def test_a_file_that_an_index_names_is_a_shard_whatever_it_is_called(tmp_path: Path, net: Net):
    index = sharded(tmp_path, net, "safetensors")
    first = tmp_path / "model-00001-of-00002.safetensors"
    first.rename(tmp_path / "first.safetensors")
    index.write_text(index.read_text().replace(first.name, "first.safetensors"))
    whole(tmp_path / "first.safetensors", net)


def test_other_files_beside_an_index_are_their_own(tmp_path: Path, net: Net):
    sharded(tmp_path, net, "safetensors")
    (tmp_path / "broken.index.json").write_text("{")
    torch.save(net.encoder.state_dict(), tmp_path / "encoder.pt")
    assert [module.name for module in read(tmp_path / "encoder.pt").modules] == [""]


INDICES: dict[str, tuple[str, str]] = {
    "no JSON": ("{", "its text is no JSON (Expecting property name"),
    "deep": ("[" * 100000, "its text is no JSON (maximum recursion depth"),
    "no map": (
        '{"metadata": {}}',
        'this is not an index of shards: it has no "weight_map" from arrays to files',
    ),
    "numbers": ('{"weight_map": {"a": 1}}', "this is not an index of shards"),
    "above": (
        '{"weight_map": {"a": "../a.bin"}}',
        "it names the file '../a.bin', which is no name in its folder",
    ),
    "from the root": ('{"weight_map": {"a": "/etc/passwd"}}', "it names the file '/etc/passwd'"),
    "the folder": ('{"weight_map": {"a": ".."}}', "it names the file '..'"),
    "no text": ('{"weight_map": {"a": "a\\u0000b"}}', "it names the file 'a\\x00b', which is no name"),
    "half a character": ('{"weight_map": {"a": "\\ud800"}}', "it names the file '\\ud800', which is no name"),
    "long": (json.dumps({"weight_map": {"a": "a" * 300}}), "it names the file 'aaaaa"),
    "backwards": ('{"weight_map": {"a": "..\\\\a"}}', "it names the file"),
    "a link": (
        '{"weight_map": {"a": "link"}}',
        "it names the file 'link', which is a link out of its folder",
    ),
    "not there": (
        '{"weight_map": {"a": "b.bin"}}',
        "the model is in several files, and b.bin is not beside it",
    ),
    "many": (
        json.dumps({"weight_map": {str(n): f"{n}.bin" for n in range(5000)}}),
        "it names more than 4096 files",
    ),
}


@pytest.mark.parametrize("name", INDICES)
def test_hostile_indices(tmp_path: Path, name: str):
    text, expected = INDICES[name]
    (tmp_path / "in").mkdir()
    index = tmp_path / "in" / "model.safetensors.index.json"
    index.write_text(text)
    os.symlink("/etc/hostname", index.parent / "link")
    with pytest.raises(FileError) as caught:
        read(index)
    assert str(caught.value).startswith(f"{index}: {expected}")


def test_an_index_and_its_shards_tell_the_same(tmp_path: Path, net: Net):
    index = sharded(tmp_path, net, "safetensors")
    told = json.loads(index.read_text())
    place = told["weight_map"].pop("head.bias")
    index.write_text(json.dumps(told))
    assert refusal("show", index) == f"{index}: it does not tell of the array 'head.bias'"
    told["weight_map"] |= {"head.bias": place, "more": place}
    index.write_text(json.dumps(told))
    assert refusal("show", index) == f"{index}: the file {place} has no array 'more'"


def test_hugging_faces_cache_is_made_of_links(tmp_path: Path, net: Net):
    """snapshots/REVISION holds links to ../../blobs; links to any other place are refused."""
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshots" / "abc"
    blobs.mkdir()
    snapshot.mkdir(parents=True)
    index = sharded(blobs, net, "safetensors")
    for number, path in enumerate(sorted(blobs.iterdir())):
        path.rename(blobs / str(number))
        os.symlink(blobs / str(number), snapshot / path.name)
    whole(snapshot / index.name, net)


# ---- archives and folders ----------------------------------------------------------------------------------


def exported(path: Path, net: Net) -> Path:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of weights that a GRU holds twice
        torch.export.save(torch.export.export(net, (torch.zeros(2, 4, INPUTS),)), path)
    return path


def distributed(path: Path, state: dict[str, Any]) -> Path:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a single process
        import_module("torch.distributed.checkpoint").save(state, checkpoint_id=path, no_dist=True)
    return path


def nemo(path: Path, net: Net, mode: Any = "w") -> Path:
    """A .nemo file, as NeMo's SaveRestoreConnector writes one."""
    weights, config = path.parent / "model_weights.ckpt", path.parent / "model_config.yaml"
    torch.save(net.state_dict(), weights)
    config.write_text("sample_rate: 16000\n")
    with tarfile.open(path, mode) as archive:
        for part in (config, weights):
            archive.add(part, f"./{part.name}")
            part.unlink()
    return path


def test_an_exported_program(tmp_path: Path, net: Net):
    path = exported(tmp_path / "net.pt2", net)
    whole(path, net)
    path.rename(tmp_path / "net")
    whole(tmp_path / "net", net)  # the content tells


def test_a_distributed_checkpoint(tmp_path: Path, net: Net):
    folder = distributed(tmp_path / "step-3", net.state_dict())
    for path in (folder, folder / "__0_0.distcp", folder / ".metadata"):
        whole(path, net)
    deeper = distributed(tmp_path / "deeper", {"model": net.state_dict(), "step": 7})
    found = held(deeper)
    assert_same(found, {f"model.{name}": array for name, array in arrays(net).items()})


def test_a_nemo_file(tmp_path: Path, net: Net):
    whole(nemo(tmp_path / "net.nemo", net), net)
    packed = nemo(tmp_path / "packed.nemo", net, "w:gz")  # as NeMo 1 did
    whole(packed, net)
    data = packed.read_bytes()
    packed.write_bytes(data[:-100])
    assert refusal("show", packed) == f"{packed}: its compressed tar is cut off"
    packed.write_bytes(data[:100] + bytes(20) + data[120:])
    assert "its compressed tar is damaged" in refusal("show", packed)


def test_a_nemo_file_that_unpacks_to_far_more_than_it_is(tmp_path: Path):
    path = tmp_path / "bomb.nemo"
    with gzip.open(path, "wb") as file:
        for _ in range(100):
            file.write(bytes(1 << 20))
    assert "with its compressed tar it would fill more than" in refusal("show", path)


def test_a_distributed_checkpoint_that_names_other_files(tmp_path: Path, net: Net):
    folder = distributed(tmp_path / "step-3", net.state_dict())
    metadata = folder / ".metadata"
    data = metadata.read_bytes()
    name = b"__0_0.distcp"
    no_name = "it names the file '{}', which is no name in its folder"
    for other, problem in (
        ("../../etc/xx", no_name),
        ("/etc/passwdd", no_name),
        ("__0_1.distcp", "its file {} is missing"),
    ):
        metadata.write_bytes(data.replace(name, other.encode()))
        with pytest.raises(FileError) as caught:
            read(folder)
        assert str(caught.value) == f"{folder}: {problem.format(other)}"


def test_whole_models_convert_to_what_they_compute(tmp_path: Path, net: Net):
    """torch.save(model), TorchScript and .pt2 give the same layers, which compute what the model's own do."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.save(net, tmp_path / "whole.pth.tar")
        torch.jit.script(net).save(tmp_path / "scripted")
    exported(tmp_path / "net.pt2", net)
    x = np.random.default_rng(0).normal(size=(2, 5, INPUTS)).astype("f4")
    expected = net.encoder(torch.from_numpy(x))[0].detach().numpy()
    for name in ("whole.pth.tar", "scripted", "net.pt2"):
        out = tmp_path / "out.onnx"
        options = ("--module", "encoder.", "--to", "onnx", "-o", out, "--force", "--verify")
        assert stepnet("convert", tmp_path / name, *options)[0] == 0
        onnxruntime = pytest.importorskip("onnxruntime")
        session = onnxruntime.InferenceSession(out, providers=["CPUExecutionProvider"])
        assert np.allclose(session.run(["output"], {"input": x})[0], expected, rtol=0, atol=1e-6)
