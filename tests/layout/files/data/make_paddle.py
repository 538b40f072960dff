"""Makes paddle.npz and the .pdparams beside it: layers inside a model, saved by PaddlePaddle 3.3.1, and what
they give.

    python make_paddle.py    (in an environment with paddlepaddle==3.3.1)
"""

from pathlib import Path

import numpy as np
import paddle
from paddle import nn

HERE = Path(__file__).parent
INPUTS, HIDDEN, PROJECTED = 2, 4, 3
KINDS = {
    "paddle_projection": (nn.LSTM, {"num_layers": 2, "direction": "bidirect", "proj_size": PROJECTED}),
    "paddle_gru": (nn.GRU, {"num_layers": 2}),
}


class Model(nn.Layer):
    def __init__(self, kind, options):
        super().__init__()
        self.encoder = kind(INPUTS, HIDDEN, **options)
        self.head = nn.Linear(HIDDEN, 2)


def main():
    paddle.seed(0)
    x = np.random.RandomState(0).normal(size=(2, 5, INPUTS)).astype("float32")
    arrays = {"x": x}
    for name, (kind, options) in KINDS.items():
        model = Model(kind, options)
        paddle.save(model.state_dict(), str(HERE / f"{name}.pdparams"))
        arrays[name] = model.encoder(paddle.to_tensor(x))[0].numpy()
    gru = Model(*KINDS["paddle_gru"])  # a checkpoint: each tensor with its name of Paddle's
    paddle.save({"model": gru.state_dict(), "epoch": 3}, str(HERE / "paddle_checkpoint.pdparams"))
    arrays["paddle_checkpoint"] = gru.encoder(paddle.to_tensor(x))[0].numpy()
    np.savez_compressed(HERE / "paddle.npz", **arrays)


if __name__ == "__main__":
    main()
