"""The results of PaddlePaddle for parameters that stepnet wrote: none may be missing, and none left over."""

import paddle
from judge import main
from paddle import nn

LAYERS = {
    "paddle.rnn": nn.SimpleRNN,
    "paddle.gru": nn.GRU,
    "paddle.lstm": nn.LSTM,
    "paddle.lstm_projection": nn.LSTM,
}


def layer_of(part, state):
    own, sizes = part.own(state), part.sizes
    options = {**part.settings}
    if sizes.get("projected"):
        options["proj_size"] = sizes["projected"]
    biased = any("bias" in name for name in own)
    if not biased:  # with bias_ih_attr=False, Paddle 3.3 keeps zeros too, and dies of a segmentation fault
        zeros = nn.initializer.Constant(0.0)
        options |= {"bias_ih_attr": zeros, "bias_hh_attr": zeros}
    layer = LAYERS[part.layout](
        sizes["inputs"],
        sizes["hidden"],
        sizes["layers"],
        "bidirect" if sizes["directions"] == 2 else "forward",
        **options,
    )
    missing, besides = layer.set_state_dict(own)
    known = layer.state_dict()  # where a parameter has two names: its layer's, and its cell's
    loaded = {id(known[name]) for name in own if name in known}
    lost = [name for name in missing if id(known[name]) not in loaded]
    if not biased:
        lost = [name for name in lost if "bias" not in name]
    assert (lost, besides) == ([], []), f"missing {lost}, and besides {besides}"
    return lambda x: layer(paddle.to_tensor(x))[0].numpy()


def judged(job):
    state = paddle.load(job.path)
    return job.outputs(lambda part: layer_of(part, state))


if __name__ == "__main__":
    main(judged, {"paddlepaddle": paddle.__version__})
