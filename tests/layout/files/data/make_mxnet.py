"""Makes mxnet.npz and the .params beside it: a model saved by MXNet 1.9.1 in each of its ways, and what its
layer gives. With files of the same names in a folder, loads these as MXNet does, and compares.

    python make_mxnet.py [FOLDER]    (in an environment with mxnet==1.9.1 and numpy==1.23.5)
"""

import sys
from pathlib import Path

import mxnet as mx
import numpy as np
from mxnet import gluon
from mxnet.gluon import nn, rnn

HERE = Path(__file__).parent
INPUTS, HIDDEN = 3, 4


class Model(gluon.HybridBlock):
    def __init__(self):
        super().__init__(prefix="model_")
        with self.name_scope():
            self.encoder = rnn.LSTM(HIDDEN, num_layers=2, bidirectional=True, layout="NTC", input_size=INPUTS)
            self.head = nn.Dense(2, in_units=2 * HIDDEN, flatten=False)

    def hybrid_forward(self, F, x):
        return self.head(self.encoder(x))


def made():
    mx.random.seed(1)
    model = Model()
    model.initialize(mx.init.Normal(0.5))
    return model


def save():
    x = np.random.RandomState(0).normal(size=(2, 5, INPUTS)).astype("float32")
    model = made()
    outputs = model.encoder(mx.nd.array(x)).asnumpy()
    model.save_parameters(str(HERE / "mxnet_blocks.params"))
    model.collect_params().save(str(HERE / "mxnet_prefixes.params"))
    model.hybridize()
    model(mx.nd.array(x))
    model.export(str(HERE / "mxnet_export"))
    (HERE / "mxnet_export-symbol.json").unlink()
    (HERE / "mxnet_export-0000.params").rename(HERE / "mxnet_export.params")
    np.savez_compressed(HERE / "mxnet.npz", x=x, encoder=outputs)


def compare(folder):
    file = np.load(HERE / "mxnet.npz")
    for path in sorted(folder.glob("mxnet_*.params")):
        model = Model()
        model.initialize()
        if path.stem == "mxnet_layer":  # of the layer alone
            model.encoder.load_parameters(str(path))
        elif path.stem == "mxnet_blocks":
            model.load_parameters(str(path))
        else:
            model.collect_params().load(str(path))
        away = np.abs(model.encoder(mx.nd.array(file["x"])).asnumpy() - file["encoder"]).max()
        print(f"{path.name}: largest difference {away}")


if __name__ == "__main__":
    compare(Path(sys.argv[1])) if sys.argv[1:] else save()
