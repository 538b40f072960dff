"""Modules that no model can be, by the message that each is refused with."""

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

import stepnet.torch
from stepnet.errors import ArgumentError, InputError, StepError
from tests.torch.torch_models import Siamese


class Written(nn.Module):
    """A module whose forward is a function of it, its frames [2, 5, 6], and their lengths."""

    def __init__(self, function: Callable[..., Any], with_lengths: bool = False) -> None:
        super().__init__()
        self.rnn = nn.GRU(6, 4, batch_first=True)
        self.cell = nn.GRUCell(6, 4)
        self.conv = nn.Conv1d(6, 6, 3, padding=1)
        self.attention = nn.MultiheadAttention(6, 2, batch_first=True)
        self.pool = nn.MaxPool1d(2)
        self.function = function
        self.with_lengths = with_lengths


class OfFrames(Written):
    def forward(self, x: Any) -> Any:
        return self.function(self, x)


class OfLengths(Written):
    def forward(self, x: Any, lengths: Any) -> Any:
        return self.function(self, x, lengths)


def looped(m: Any, x: Any) -> Any:
    h = x.new_zeros(x.size(0), 4)
    for step in range(x.size(1)):
        h = m.cell(x[:, step], h)
    return h


def read_again(m: Any, x: Any) -> Any:
    largest, place = m.rnn(x)[0].max(1)
    return largest * place


def written(m: Any, x: Any) -> Any:
    y = x.clone()
    y[:, :1] = x.mean(1, keepdim=True)
    return y


class Own(nn.GRU):
    """A layer with a forward of its own."""

    def forward(self, input: Any, hx: Any = None) -> Any:  # noqa: A002 - PyTorch's name
        return super().forward(input, hx)[0]


OPERATIONS: dict[str, tuple[Callable[..., Any], str]] = {
    "a sum of more and of fewer steps": (
        lambda m, x: x.mean(-1) + nn.functional.max_pool1d(x.mean(-1)[:, None], 2)[:, 0],
        "its operations depend on the number of steps after a convolution or pooling, which differs between",
    ),
    "a convolution without a kernel": (
        lambda m, x: nn.functional.conv1d(x.transpose(1, 2), m.conv.weight, stride=2, padding=-1),
        "there is no kernel of 3 with a stride of 2, a dilation of 1, and -1 and -1 steps of zeros",
    ),
    "a pooling with more windows": (
        lambda m, x: nn.functional.max_pool1d(x.transpose(1, 2), 2, ceil_mode=True),
        "its ceil_mode has windows that end beyond the sequence",
    ),
    "a pooling of features": (
        lambda m, x: nn.functional.max_pool1d(x, 2),
        "a convolution or pooling of a model is over the steps of a tensor [sequences, features, steps], not "
        "over an axis of size 6",
    ),
    "a convolution of steps and zeros": (
        lambda m, x: nn.functional.max_pool1d(nn.functional.pad(x.transpose(1, 2), (1, 1)), 2),
        "not over an axis of size steps + 2; the layer itself can pad steps",
    ),
    "convolution over features": (
        lambda m, x: m.conv(x[:, :1].transpose(1, 2)),
        "stepnet.convolved.default: a convolution of a model is over the steps of a tensor [sequences, "
        "features, steps], not of [sequences, 6, 1]",
    ),
    "convolution over two axes": (
        lambda m, x: nn.functional.conv2d(x[:, None], m.conv.weight[:1, None, :3]),
        "a convolution over two or three axes is no operation of a model",
    ),
    "causal attention by a parameter": (
        lambda m, x: nn.functional.scaled_dot_product_attention(
            m.rnn.weight_ih_l0.expand(x.size(0), -1, -1), x, x, is_causal=True
        ),
        "stepnet.attended.default: it is causal, and its queries or its keys are no steps",
    ),
    "heads that do not fit": (
        lambda m, x: nn.functional.scaled_dot_product_attention(
            x.unflatten(-1, (3, 2)).transpose(1, 2),
            *[x[..., :4].unflatten(-1, (2, 2)).transpose(1, 2)] * 2,
        ),
        "stepnet.attended.default: its 3 heads of queries are no multiple of 2 heads of keys",
    ),
    "attention of single vectors": (
        lambda m, x: nn.functional.scaled_dot_product_attention(x[:, 0], x[:, 0], x[:, 0]),
        "[sequences, 6] are no queries, keys and values",
    ),
    "attention with dropout": (
        lambda m, x: nn.functional.scaled_dot_product_attention(x, x, x, dropout_p=0.1),
        "dropout draws random numbers: call .eval() on the module",
    ),
    "steps of zeros": (
        lambda m, x: nn.functional.pad(x.transpose(1, 2), (2, 0)),
        "aten.cat.default: it joins [sequences, 6, 2] and [sequences, 6, steps]",
    ),
    "loop": (looped, "depend on the number of steps, which differs between sequences"),
    "a step in the middle": (lambda m, x: x[:, 3], "take all steps, the first, x[:, 0], or the last"),
    "a shift": (lambda m, x: x[:, 1:] - x, "depend on the number of steps"),
    "steps between": (
        lambda m, x: nn.functional.interpolate(x.transpose(1, 2), scale_factor=1.5),
        "interpolate repeats each step of a tensor [sequences, features, steps] a whole number of times",
    ),
    "the second step": (lambda m, x: x[:, 1], "of each sequence, a model can take all steps"),
    "attention weights as an output": (
        lambda m, x: m.attention(x, x, x)[1],
        "is a value at each pair of steps, of which a model returns none",
    ),
    "a product of transposed pairs": (
        lambda m, x: (x @ x.sin().mT).mT @ x,
        "an output of the module has an axis of keys and none of queries, as a product of transposed pairs",
    ),
    "transposed pairs": (
        lambda m, x: (x @ x.sin().mT * (x.sin() @ x.mT).mT) @ x,
        "aten.mul.Tensor: values at pairs of steps meet transposed ones: make both in one order",
    ),
    "pairs": (
        lambda m, x: x.unsqueeze(1) - x.unsqueeze(2),
        "an output of the module is a value at each pair of steps, of which a model returns none",
    ),
    "a mean over the batch": (
        lambda m, x: m.rnn(x)[0].mean(0, keepdim=True),
        "aten.mean.dim: it goes over the sequences of [sequences, steps, 4], which mixes them",
    ),
    "a sum of all": (lambda m, x: x.sum(), "it goes over the sequences of [sequences, steps, 6]"),
    "one of the batch": (lambda m, x: x[0], "aten.select.int: it goes over the sequences"),
    "products of sequences": (
        lambda m, x: x.mean(1) @ x.mean(1).T,
        "has two axes of sequences, which no value of a model has",
    ),
    "steps from behind": (lambda m, x: m.rnn(x.flip(1))[0], "aten.flip.default: it goes over the steps"),
    "steps repeated": (lambda m, x: x.repeat(1, 2, 1), "aten.repeat.default: it goes over the steps"),
    "steps behind steps": (
        lambda m, x: m.rnn(torch.cat([x, x], 1))[0],
        "is called with a tensor [sequences, 2 x steps, 6]: the steps are its axis 1",
    ),
    "a batch behind a batch": (
        lambda m, x: torch.cat([x, x]),
        "an output of the module is [2 x sequences, steps, 6]: sequences and steps are axes of their own",
    ),
    "steps behind steps as an output": (
        lambda m, x: torch.cat([x, x], 1),
        "an output of the module is [sequences, 2 x steps, 6]: sequences and steps are axes of their own",
    ),
    "axes in another order": (
        lambda m, x: m.rnn(x.transpose(0, 1))[0],
        "a recurrent layer with batch_first=True is called with a tensor [steps, sequences, 6]",
    ),
    "two orders": (
        lambda m, x: x.reshape(-1, 6) + x.transpose(0, 1).reshape(-1, 6),
        "tensors are combined whose sequences and steps are joined in different orders",
    ),
    "products in two orders": (
        lambda m, x: torch.bmm(
            torch.stack([x.mean(1), x.sum(1)], 1).view(-1, 1, 6),
            torch.stack([x.mean(1), x.sum(1)], 0).view(-1, 6, 1),
        ),
        "2 x sequences, 6, 1] are multiplied, whose sequences and steps are joined in different orders",
    ),
    "places of steps": (read_again, "aten.mul.Tensor: the place of a step is not known in a model"),
    "a place as an output": (
        lambda m, x: x.max(1)[1],
        "an output of the module is the place of a step, which is not a value of a model",
    ),
    "dropout": (lambda m, x: functional.dropout(x), "dropout draws random numbers: call .eval()"),
    "random numbers": (lambda m, x: x + torch.randn_like(x), "aten.randn_like.default is not an operation"),
    "a branch": (lambda m, x: x if x[:, 0].sum() > 0 else -x, "it goes over the sequences|cannot branch"),
    "an unknown operation": (
        lambda m, x: m.rnn(x)[0].topk(2)[0],
        "aten.topk.default is not an operation of a model: a step written with NumPy has np.sort",
    ),
    "an adaptive pool": (
        lambda m, x: nn.functional.adaptive_max_pool1d(x.transpose(1, 2), 2),
        "adaptive_max_pool1d pools over windows of steps, or over all steps of a sequence",
    ),
    "no batch": (
        lambda m, x: m.rnn(x.mean(1))[0],
        "GRU is called with 2 axes; in a model it runs over a batch",
    ),
    "a number": (lambda m, x: (x, 3), "the module returns 3; the outputs of a model are tensors"),
    "a number of steps": (
        lambda m, x: x / x.size(1) ** 0.5,
        ", and a model knows the number of steps alone, x.size(1)",
    ),
    "steps in place": (written, "aten.slice_scatter.default: it goes over the steps"),
    "a number of sequences": (lambda m, x: x / x.size(0), "a value depends on the number sequences"),
    "a range that counts down": (
        lambda m, x: x * torch.arange(x.size(1) - 1, -1, -1).view(1, -1, 1),
        "a range over steps or sequences starts at 0, ends at their number and counts by 1, as torch.arange(",
    ),
    "an identity matrix of steps": (
        lambda m, x: torch.eye(x.size(1)) @ x,
        "it makes an identity matrix of the number of steps or sequences",
    ),
    "a norm": (lambda m, x: torch.linalg.vector_norm(x, 3, dim=1), "a norm of order 3 over steps"),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_operations_that_models_do_not_have(name: str) -> None:
    function, message = OPERATIONS[name]
    module = OfFrames(function).eval()
    parts = "|".join(re.escape(part) for part in message.split("|"))
    with pytest.raises(StepError, match=f"(?s)({parts}).*\n  at .*test_torch_models_refused.py:"):
        stepnet.torch.graph(module, torch.zeros(2, 5, 6))


LENGTHS: dict[str, tuple[Callable[..., Any], str]] = {
    "other lengths": (
        lambda m, x, lengths: m.rnn(nn.utils.rnn.pack_padded_sequence(x, lengths - 1, True, False))[0].data,
        "sequences are packed with other lengths than their own, which are the argument `lengths`: lengths=",
    ),
    "a list of lengths": (
        lambda m, x, lengths: nn.utils.rnn.pack_padded_sequence(x, lengths.tolist(), True, False).data,
        "nor make a list of lengths: pack_padded_sequence takes lengths.cpu()",
    ),
    "a sort that is not undone": (
        lambda m, x, lengths: m.rnn(x[lengths.sort()[1]])[0],
        "an output of the module has its sequences in sorted order: undo the sort",
    ),
    "sorted beside not sorted": (
        lambda m, x, lengths: x + x[lengths.argsort()],
        "tensors are combined whose sequences and steps are joined in different orders",
    ),
    "lengths that were not sorted": (
        lambda m, x, lengths: nn.utils.rnn.pack_padded_sequence(x[lengths.argsort()], lengths, True).data,
        "the order of the lengths, [sequences], is not that of",
    ),
    "an order as a number": (
        lambda m, x, lengths: lengths.argsort() * 2,
        "a value depends on the indices of sequences in their batch, or on their order",
    ),
    "a total length": (
        lambda m, x, lengths: nn.utils.rnn.pad_packed_sequence(
            m.rnn(nn.utils.rnn.pack_padded_sequence(x, lengths, True, False))[0], True, total_length=9
        )[0],
        "depend on the number of steps|total_length that is a fixed number",
    ),
    "other steps": (
        lambda m, x, lengths: x.gather(1, lengths.view(-1, 1, 1).expand(-1, 1, 6)),
        "gather over steps can only take the last step of each sequence, at lengths - 1",
    ),
}


@pytest.mark.parametrize("name", LENGTHS)
def test_lengths_that_are_not_the_sequences_own(name: str) -> None:
    function, message = LENGTHS[name]
    parts = "|".join(re.escape(part) for part in message.split("|"))
    with pytest.raises(StepError, match=f"(?s)({parts}).*\n  at .*test_torch_models_refused.py:"):
        stepnet.torch.graph(OfLengths(function).eval(), (torch.zeros(2, 5, 6), torch.tensor([5, 5])))


def test_all_unknown_operations_are_named() -> None:
    module = OfFrames(lambda m, x: m.rnn(x.topk(6)[0])[0].sort(2)[0])
    with pytest.raises(
        StepError,
        match=r"(?s)aten.topk.default is not .*; neither are the operations below: a step.*\n"
        r"  at .*\n  aten.sort.default\n  at .*test_torch_models_refused.py",
    ):
        stepnet.torch.graph(module.eval(), torch.zeros(2, 5, 6))


class Nested(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(6, 6), OfFrames(lambda m, x: x.topk(2)[0]))

    def forward(self, x: Any) -> Any:
        return self.encoder(x)


def test_a_message_has_the_path_of_the_module() -> None:
    with pytest.raises(StepError, match=r"\n  at .*\n  in module `encoder.1`, a OfFrames"):
        stepnet.torch.graph(Nested().eval(), torch.zeros(2, 5, 6))


def test_layers_that_are_not_torchs() -> None:
    own = nn.Sequential(Own(6, 4, batch_first=True)).eval()
    with pytest.raises(StepError, match="a subclass of a recurrent layer with a forward of its own"):
        stepnet.torch.graph(own, torch.zeros(2, 5, 6))
    training = nn.Sequential(nn.GRU(6, 4, 2, dropout=0.5, batch_first=True))
    with pytest.raises(StepError, match=r"dropout draws random numbers: call \.eval"):
        stepnet.torch.graph(training, torch.zeros(2, 5, 6))


def test_arguments_that_do_not_fit() -> None:
    module, x = OfFrames(lambda m, x: x), torch.zeros(2, 5, 6)

    def refused(message: str, example: Any, of: Any = module, **options: Any) -> None:
        with pytest.raises(InputError, match=message):
            stepnet.torch.graph(of, example, **options)

    refused(r"graph takes a torch.nn.Module, not a function", x, lambda x: x)
    refused(r"example is not a call of OfFrames: .*argument", (x, x))
    refused(r"lengths= names an argument; those of the example are x", x, lengths="size")
    for lengths, what in (([5, 5], "list"), ({}, "dict"), (torch.tensor([5, 5]), "Tensor")):
        refused(rf"lengths= is the name of the argument .*, not a {what}: give the", x, lengths=lengths)
    refused(r"the axes of argument x are 'BT'; they are a letter for each of its 3 axes", x, axes="BT")
    refused(r"the axes of argument x are 'T'; ", x, axes={"x": "T"})
    refused(r"axes= has 'y', and the arguments of the example are x", x, axes={"y": "TN"})
    refused(r"no argument of the example has steps: mark the axis of steps in axes=", x, axes="N")
    refused(r"axes is a text such as 'NT', or a dict of such texts .*, not a list", x, axes=["NT"])
    refused(r"different numbers of sequences: first has 2, second has 1", (x, x[:1]), Siamese())
    mixed = nn.Sequential(nn.GRU(6, 4), nn.GRU(4, 4, batch_first=True))
    refused(r"some layers are batch_first and others are not: say axes=", x, mixed)
    small = nn.Sequential(nn.Embedding(9, 6), nn.GRU(6, 4, batch_first=True)).to(torch.float8_e4m3fn)
    refused(
        r"parameter 0.weight has dtype float8_e4m3fn; use one of float32",
        torch.zeros(2, 5, dtype=torch.int64),
        small,
    )
    packed = nn.utils.rnn.pack_sequence([x[0]])
    refused(r"argument x is a PackedSequence", packed)


class Started(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.GRU(3, 4, 2, batch_first=True)

    def forward(self, x: Any, h0: Any) -> Any:
        return self.rnn(x, h0)[0]


def test_an_initial_state_of_a_module_is_a_static() -> None:
    x, h0 = torch.zeros(2, 5, 3), torch.zeros(2, 2, 4)
    with pytest.raises(StepError, match=r"axes=\{'h0': '_N'\} says that h0 has no steps"):
        stepnet.torch.graph(Started(), (x, h0))
    graph = stepnet.torch.graph(Started(), (x, h0), axes={"h0": "_N"})
    with pytest.raises(ArgumentError, match="it is a static, statics=h0, with the batch as its first axis"):
        graph(x.numpy(), h0=h0.numpy())


def test_an_example_is_no_list() -> None:
    with pytest.raises(InputError, match="example is a list: give a tensor, a tuple of arguments, or a dict"):
        stepnet.torch.graph(nn.GRU(3, 4), [torch.zeros(2, 5, 3)])
