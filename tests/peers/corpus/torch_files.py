"""The files of PyTorch: every kind of file of one model, and models of every kind in a state dict."""

import json
import warnings
from pathlib import Path
from tempfile import TemporaryDirectory
from zipfile import ZipFile

import torch
from safetensors.torch import save_file
from specimens import HIDDEN, INPUTS, PROJECTED, ROWS, STEPS, Specimens, pack, random
from torch import nn
from torch.distributed import checkpoint

WORDS = 4
EVERY = {"batch_first": True}


class Speech(nn.Module):
    """Words to numbers: what people train most."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(WORDS, INPUTS)
        self.encoder = nn.LSTM(INPUTS, HIDDEN, **EVERY)
        self.dropout = nn.Dropout(0.1)
        self.decoder = nn.GRU(HIDDEN, HIDDEN + 1, **EVERY)
        self.head = nn.Linear(HIDDEN + 1, 2)

    def forward(self, words):
        encoded, _ = self.encoder(self.embedding(words))
        decoded, _ = self.decoder(self.dropout(encoded))
        return self.head(decoded)


class Cells(nn.Module):
    """An encoder and a decoder of cells, with the loop outside."""

    def __init__(self):
        super().__init__()
        self.encoder = nn.LSTMCell(INPUTS, HIDDEN)
        self.decoder = nn.GRUCell(HIDDEN, HIDDEN)
        self.simple = nn.RNNCell(HIDDEN, HIDDEN)


def numbers(model):
    """The results of each recurrent layer of a model for inputs, from zeros."""
    known = {}
    for name, layer in model.named_modules():
        if isinstance(layer, nn.RNNBase):
            x = random(ROWS, STEPS, layer.input_size)
            known[name] = x, layer(torch.from_numpy(x))[0].numpy()
        elif isinstance(layer, nn.RNNCellBase):
            x, state, outputs = random(ROWS, STEPS, layer.input_size), None, []
            for step in range(STEPS):
                state = layer(torch.from_numpy(x[:, step]), state)
                outputs.append(state[0] if isinstance(state, tuple) else state)
            known[name] = x, torch.stack(outputs, 1).numpy()
    return known


def of_one_model(made, folder):
    """The same model in every kind of file."""
    model = Speech().eval()
    words = torch.zeros(ROWS, STEPS, dtype=torch.int64)
    optimizer = torch.optim.Adam(model.parameters())
    with torch.enable_grad():
        model.train()(words).sum().backward()
    optimizer.step()
    model.eval().zero_grad()
    state = {name: value.clone() for name, value in model.state_dict().items()}
    known = numbers(model)
    torch.save(state, folder / "state.pt")
    made.add("state.pt", "state dict", known)
    torch.save(state, folder / "legacy.pth", _use_new_zipfile_serialization=False)
    made.add("legacy.pth", "state dict, before PyTorch 1.6", known)
    whole = {"model_state_dict": state, "optimizer_state_dict": optimizer.state_dict(), "epoch": 3}
    torch.save(whole, folder / "checkpoint.tar")
    made.add("checkpoint.tar", "checkpoint with its optimiser", within("model_state_dict.", known))
    lightning = {
        "epoch": 3,
        "global_step": 9,
        "pytorch-lightning_version": "2.5.0",
        "state_dict": {f"model.{name}": value for name, value in state.items()},
        "optimizer_states": [optimizer.state_dict()],
        "lr_schedulers": [],
        "hyper_parameters": {"hidden": HIDDEN},
    }
    torch.save(lightning, folder / "lightning.ckpt")
    made.add("lightning.ckpt", "as Lightning saves", within("state_dict.model.", known))
    torch.save(model, folder / "model.pth")
    made.add("model.pth", "a whole module", known)
    torch.jit.script(model).save(folder / "script.pt")
    without_places(folder / "script.pt")
    made.add("script.pt", "TorchScript", known)
    exported = torch.export.export(model, (words,))
    for node in exported.graph.nodes:
        node.meta.pop("stack_trace", None)
    torch.export.save(exported, folder / "exported.pt2")
    x = known["encoder"][0]
    row = model.decoder(model.encoder(torch.from_numpy(x))[0])[0].detach().numpy()
    made.add("exported.pt2", "torch.export", {**known, "*": (x, row)})  # it says what the decoder takes
    save_file(state, folder / "model.safetensors")
    made.add("model.safetensors", "safetensors", known)
    shards(state, folder / "shards")
    made.add("shards/model.safetensors.index.json", "safetensors in shards", known)
    checkpoint.save(state, checkpoint_id=folder / "distributed", no_dist=True)
    made.add("distributed", "torch.distributed.checkpoint", known)


def without_places(path):
    """Takes from a TorchScript what says where its source lay on the machine that made it."""
    with ZipFile(path) as archive:
        held = {info: archive.read(info) for info in archive.infolist()}
    with ZipFile(path, "w") as archive:
        for info, data in held.items():
            if not info.filename.endswith(".debug_pkl"):
                archive.writestr(info, data)
    torch.jit.load(path)


def within(front, known):
    return {front + name: pair for name, pair in known.items()}


def shards(state, folder):
    folder.mkdir()
    places, names = {}, list(state)
    for number, start in enumerate(range(0, len(names), 4), 1):
        file = f"model-{number:05}-of-{-(-len(names) // 4):05}.safetensors"
        part = {name: state[name] for name in names[start : start + 4]}
        save_file(part, folder / file)
        places.update(dict.fromkeys(part, file))
    index = {"metadata": {"total_size": 1}, "weight_map": places}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def of_every_kind(made, folder):
    """Every kind of layer, each in a state dict."""
    kinds = {
        "both.pt": ("GRU, 2 layers, both directions", nn.GRU(INPUTS, HIDDEN, 2, bidirectional=True, **EVERY)),
        "layers.pt": ("LSTM, 3 layers", nn.LSTM(INPUTS, HIDDEN, 3, **EVERY)),
        "no_bias.pt": ("LSTM without biases", nn.LSTM(INPUTS, HIDDEN, bias=False, **EVERY)),
        "projected.pt": ("LSTM with a projection", nn.LSTM(INPUTS, HIDDEN, proj_size=PROJECTED, **EVERY)),
        "relu.pt": ("RNN with relu", nn.RNN(INPUTS, HIDDEN, nonlinearity="relu", **EVERY)),
        "tanh.pt": ("RNN with tanh, both directions", nn.RNN(INPUTS, HIDDEN, bidirectional=True, **EVERY)),
    }
    for file, (what, layer) in kinds.items():
        model = nn.ModuleDict({"rnn": layer})
        torch.save(model.state_dict(), folder / file)
        said = ("--semantics", f"activation={layer.nonlinearity}") if isinstance(layer, nn.RNN) else ()
        made.add(file, what, numbers(model), *said)
    cells = Cells()
    torch.save(cells.state_dict(), folder / "cells.pt")
    made.add("cells.pt", "cells", numbers(cells), "--semantics", "activation=tanh")


def row(layers):
    """The results of layers for inputs by themselves, by their names, and one after the other."""
    known = numbers(layers)
    x = random(ROWS, STEPS, INPUTS)
    y = torch.from_numpy(x)
    for layer in layers.values() if isinstance(layers, nn.ModuleDict) else layers:
        y, _ = layer(y)
    return {**known, "*": (x, y.numpy())}


def of_several(made, folder):
    """Layers in a row, which a file does not say: of a list, and of two activations."""
    sizes = ((INPUTS, 1, False), (HIDDEN, 2, True), (2 * HIDDEN, 1, False))
    listed = nn.ModuleList(
        [nn.LSTM(inputs, HIDDEN, count, bidirectional=both, **EVERY) for inputs, count, both in sizes]
    )
    model = nn.ModuleDict({"rnns": listed})
    known = {"rnns." + name if name != "*" else name: pair for name, pair in row(listed).items()}
    save_file(model.state_dict(), folder / "list.safetensors")
    made.add(
        "list.safetensors", "LSTMs of a list: one, of 2 layers and both directions, one", known, "--stack"
    )
    model = nn.ModuleDict({"first": nn.RNN(INPUTS, HIDDEN, nonlinearity="relu", **EVERY),
                           "second": nn.RNN(HIDDEN, HIDDEN, **EVERY)})  # fmt: skip
    torch.save(model.state_dict(), folder / "activations.pt")
    said = ("--semantics", "first:activation=relu", "--semantics", "second:activation=tanh", "--stack")
    made.add("activations.pt", "RNN with relu, RNN with tanh", row(model), *said)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    torch.set_grad_enabled(False)
    made = Specimens({"torch": torch.__version__})
    with TemporaryDirectory() as name:
        of_one_model(made, Path(name))
        of_every_kind(made, Path(name))
        of_several(made, Path(name))
        pack("torch", Path(name), made)
