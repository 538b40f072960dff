"""Programs of torch.export that are read whole, without PyTorch, and what the modules themselves compute."""

import re
import subprocess
import sys
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
from command_line import stepnet
from tolerance import assert_close
from torch_code import Code

import stepnet as sn
import stepnet.torch as stepnet_torch
from stepnet import arrow
from stepnet.errors import FileError, InputError, ModelError, StepnetError
from stepnet.layout.files.pickles.export_whole import EXPORTED

torch = pytest.importorskip("torch")
nn = torch.nn
F = nn.functional

pytestmark = pytest.mark.filterwarnings(
    "ignore:The tensor attributes",
    "ignore:LSTM with projections is not supported with oneDNN",
    "ignore:`isinstance.treespec, LeafSpec.` is deprecated",
)  # of torch.export and of torch.nn
LENGTHS = (2, 7, 13)
ROWS = torch.export.Dim("rows")
STEPS, AUTO = torch.export.Dim("steps"), torch.export.Dim.AUTO


def first(**kind: Any) -> dict[str, Any]:
    """The arguments of layers whose first axis is the batch."""
    return {"batch_first": True, **kind}


def words(s: Any, x: Any) -> Any:
    return s.tag(s.rnn(s.embed(x))[0]).log_softmax(-1)


def over_channels(function: Callable[..., Any]) -> Callable[..., Any]:
    """The forward of a model that runs a function of the model and channels before its recurrent layer."""
    return lambda s, x: s.out(s.rnn(function(s, x.transpose(1, 2)).transpose(1, 2))[0])


def several(s: Any, x: Any) -> Any:
    y, (h, c) = s.rnn(x)
    return {"tags": s.out(y), "last": y[:, -1], "h": torch.cat([h[0], h[1]], -1), "c": c[1].tanh()}


def residual(s: Any, x: Any) -> Any:
    for rnn, norm in ((s.a, s.p), (s.b, s.q)):
        x = x + norm(rnn(x)[0])
    return x, x.mean(1)


def gated(s: Any, x: Any) -> Any:
    a, b = s.both(s.rnn(x)[0]).chunk(2, -1)
    y = torch.stack([a * torch.sigmoid(b), F.silu(a), F.softplus(b)], -1)
    return y.flatten(2).unflatten(2, (4, 6)).sum(-1)


def attended(s: Any, x: Any) -> Any:
    y, _ = s.rnn(x)
    weights = torch.softmax(s.score(y), 1)
    return (weights * y).sum(1)


def learned(s: Any, x: Any) -> Any:
    h = s.h.expand(1, x.size(0), 5).contiguous()
    return s.out(s.rnn(x, h)[0])


def in_place(s: Any, x: Any) -> Any:
    y = s.out(s.rnn(x)[0])
    y += 1.5
    return F.relu(y, inplace=True).mul_(2)


def gru(inputs: int = 4, **kind: Any) -> Any:
    return nn.GRU(inputs, 5, **first(**kind))


WORDS = {"embed": nn.Embedding(20, 4), "tag": nn.Linear(10, 3)}
CONV = {"rnn": gru(6), "out": nn.Linear(5, 2)}
MODELS: dict[str, Any] = {
    "a tagger, LSTM both ways": Code(words, rnn=nn.LSTM(4, 5, bidirectional=True, **first()), **WORDS),
    "a tagger, GRU of two layers": Code(
        words, rnn=gru(num_layers=2, bidirectional=True, dropout=0.5), **WORDS
    ),
    "several outputs by name": Code(several, rnn=nn.LSTM(4, 5, num_layers=2, **first()), out=nn.Linear(5, 3)),
    "residual GRUs with layer norm": Code(
        residual, a=nn.GRU(4, 4, **first()), p=nn.LayerNorm(4), b=nn.GRU(4, 4, **first()), q=nn.LayerNorm(4)
    ),
    "an RNN with relu, without bias": Code(
        lambda s, x: s.out(F.dropout(s.rnn(x)[0], 0.3, s.training)),
        rnn=nn.RNN(4, 5, nonlinearity="relu", bias=False, **first()),
        out=nn.Linear(5, 2),
    ),
    "time first, last state": Code(
        lambda s, x: s.out(s.rnn(x)[1][-1]), rnn=nn.GRU(4, 5, 2), out=nn.Linear(5, 2)
    ),
    "a projected LSTM": Code(
        lambda s, x: s.out(s.rnn(x)[0]), rnn=nn.LSTM(4, 6, proj_size=3, **first()), out=nn.Linear(3, 2)
    ),
    "a convolution and batch norm": Code(
        over_channels(lambda s, x: F.relu(s.norm(s.conv(x)))),
        conv=nn.Conv1d(4, 6, 3, padding=1),
        norm=nn.BatchNorm1d(6),
        **CONV,
    ),
    "a causal convolution": Code(
        over_channels(lambda s, x: F.gelu(s.conv(F.pad(x, (4, 0))))),
        conv=nn.Conv1d(4, 6, 3, dilation=2, groups=2),
        **CONV,
    ),
    "a strided convolution": Code(
        over_channels(lambda s, x: s.conv(x)), conv=nn.Conv1d(4, 6, 3, stride=2, padding=1), **CONV
    ),
    "pooling of steps": Code(
        over_channels(lambda s, x: F.max_pool1d(s.conv(x), 3, stride=1, padding=1)),
        conv=nn.Conv1d(4, 6, 1),
        **CONV,
    ),
    "gates, stacks and views": Code(gated, rnn=gru(), both=nn.Linear(5, 16)),
    "a softmax over the steps": Code(attended, rnn=gru(), score=nn.Linear(5, 1)),
    "changes in place": Code(in_place, rnn=gru(), out=nn.Linear(5, 3)),
    "a parameter as a factor": Code(
        lambda s, x: torch.where(s.rnn(x)[0] > 0, s.rnn(x)[0] * s.scale, -1.0).clamp(-0.5, 0.5),
        rnn=gru(),
        scale=nn.Parameter(torch.rand(5)),
    ),
    "pointwise functions": Code(
        lambda s, x: torch.exp(-torch.abs(s.rnn(x)[0])) / 3 + F.leaky_relu(F.elu(x[..., :1])) ** 2 - 1,
        rnn=gru(),
    ),
}


def backwards(s: Any, x: Any) -> Any:
    turned = F.relu(s.back(torch.tanh(x.flip(1)))[0])
    return {"both": torch.cat([s.rnn(x)[0], turned.flip(1)], -1), "first": turned[:, -1], "end": turned[:, 0]}


def turned_around(s: Any, x: Any) -> Any:
    """Steps in reverse order with those in order, both ways, in a convolution, and as an output."""
    y = s.rnn(x.flip(1))[0]
    z = s.conv(y.transpose(1, 2)).transpose(1, 2)
    return {
        "sum": s.rnn(x)[0] + y,
        "both": s.both(x.flip(1))[0],
        "conv": z,
        "flip": y.flip(1),
        "last first": y,
    }


def einsums(s: Any, x: Any) -> Any:
    y, _ = s.rnn(x)
    weights = torch.einsum("...d, hd -> ...h", y, s.queries).softmax(1)
    pooled = torch.einsum("bth,btd->bhd", weights, y)
    outer = torch.einsum("bti,btj->btij", y, x)
    return {"pooled": pooled, "outer": outer, "total": torch.einsum("btd->bd", y)}


def normalised(s: Any, x: Any) -> Any:
    y = s.rnn(x)[0].transpose(1, 2)
    y = s.slopes(s.groups(y)) + s.slope(s.single(y))
    return F.glu(y.transpose(1, 2)), y.std(2), y.std(1, unbiased=False), y.var(dim=1)


OTHERS: dict[str, Any] = {
    "steps in reverse order": Code(backwards, rnn=gru(), back=nn.LSTM(4, 5, 2, **first())),
    "steps in reverse order, and in order": Code(
        turned_around, rnn=gru(), both=gru(bidirectional=True), conv=nn.Conv1d(5, 3, 3, padding=1)
    ),
    "einsum": Code(einsums, rnn=gru(), queries=nn.Parameter(torch.rand(3, 5))),
    "norms of groups, slopes, deviations": Code(
        normalised,
        rnn=nn.GRU(4, 6, **first()),
        groups=nn.GroupNorm(3, 6),
        single=nn.GroupNorm(1, 6, affine=False),
        slopes=nn.PReLU(6),
        slope=nn.PReLU(),
    ),
}
FREE: dict[str, Any] = {  # without recurrent layers, so that the number of steps is a symbol too
    "layers at each step": Code(
        lambda s, x: s.b(torch.tanh(s.a(x))).softmax(-1), a=nn.Linear(4, 6), b=nn.Linear(6, 3)
    ),
    "a mean of words": Code(
        lambda s, x: s.tag(s.embed(x).mean(1)), embed=nn.Embedding(20, 6), tag=nn.Linear(6, 2)
    ),
    "causal attention": Code(
        lambda s, x: F.scaled_dot_product_attention(s.q(x), s.k(x), x, is_causal=True),
        q=nn.Linear(4, 6),
        k=nn.Linear(4, 6),
    ),
    "a layer of a transformer": Code(
        lambda s, x: s.norm(x + s.att(x, x, x, need_weights=False)[0] + s.att(x, x, x)[0]),
        att=nn.MultiheadAttention(4, 2, **first()),
        norm=nn.LayerNorm(4),
    ),
    "a bank of convolutions": Code(
        lambda s, x: torch.cat([F.relu(c(x.transpose(1, 2))).amax(-1) for c in (s.a, s.b)], -1),
        a=nn.Conv1d(4, 3, 3, padding=1),
        b=nn.Conv1d(4, 3, 5, padding="same"),
    ),
}


WRITTEN = [
    MODELS[name]
    for name in (
        "a causal convolution",
        "changes in place",
        "a parameter as a factor",
        "pointwise functions",
    )
]
"""Models with numbers of the author's, which run over numbers of steps that the file does not fix."""


def example(model: Any, rows: int = 3, steps: int = 7) -> Any:
    """The input of an export."""
    lead = (rows, steps)
    if isinstance(getattr(model, "rnn", None), nn.RNNBase) and not model.rnn.batch_first:
        lead = (steps, rows)
    return torch.zeros(lead, dtype=torch.int64) if hasattr(model, "embed") else torch.randn(*lead, 4)


def saved(path: Path, model: Any, dynamic: dict[int, Any] | None = None, **sizes: int) -> Path:
    """A file of the exported model; dynamic: the axes whose sizes are not fixed."""
    shapes = None if dynamic is None else {"x": dynamic}
    program = torch.export.export(model.eval(), (example(model, **sizes),), dynamic_shapes=shapes)
    torch.export.save(program, path)
    return path


def inputs_of(model: Any) -> list[Any]:
    """Sequences of several lengths."""
    rng = np.random.default_rng(0)
    if hasattr(model, "embed"):
        return [rng.integers(0, 20, length) for length in LENGTHS]
    return [rng.normal(size=(length, 4)).astype("float32") for length in LENGTHS]


def check_same(path: Path, model: Any, steps: str | None = None) -> None:
    """Asserts that the file gives what PyTorch gives for each sequence alone, in one ragged batch.

    steps: "any" for a program with a fixed number of steps and numbers of the author's.
    """
    model_read = sn.load(path, steps=steps or ("any" if model in WRITTEN else None))
    assert isinstance(model_read, sn.Graph)
    xs = inputs_of(model)
    found = model_read(sn.Ragged.from_list(xs))
    axis = 1 if example(model, 3, 7).shape[0] == 7 else 0
    for place, x in enumerate(xs):
        with torch.inference_mode():
            right = model(torch.tensor(x).unsqueeze(axis))
        pairs = pairs_of(found, right)
        assert pairs
        for ours, theirs in pairs:
            value = ours.to_list()[place] if isinstance(ours, sn.Ragged) else ours[place]
            alone = theirs.squeeze(axis if isinstance(ours, sn.Ragged) else 0)
            assert_close(value, alone.numpy(), len(x), 20)


def pairs_of(found: Any, right: Any) -> list[tuple[Any, Any]]:
    """The outputs of a graph with those of the module."""
    if isinstance(right, dict):
        assert list(found) == list(right)
        return [(found[name], value) for name, value in right.items()]
    if isinstance(right, tuple):
        assert len(found) == len(right)
        return list(zip(found.values(), right, strict=True))
    return [(found, right)]


@pytest.mark.long(every=6)
@pytest.mark.parametrize("name", MODELS)
def test_a_program_with_fixed_sizes_is_read_whole(name: str, tmp_path: Path):
    model = MODELS[name]
    check_same(saved(tmp_path / "m.pt2", model), model)


@pytest.mark.long(every=6)
@pytest.mark.parametrize("name", MODELS)
def test_a_program_with_any_number_of_sequences_is_read_whole(name: str, tmp_path: Path):
    model = MODELS[name]
    axis = 1 if example(model, 3, 7).shape[0] == 7 else 0
    check_same(saved(tmp_path / "m.pt2", model, {axis: ROWS}), model)


@pytest.mark.parametrize("name", OTHERS)
def test_programs_with_further_operations_are_read_whole(name: str, tmp_path: Path):
    check_same(saved(tmp_path / "m.pt2", OTHERS[name], {0: ROWS}), OTHERS[name])


@pytest.mark.long(each=True)
@pytest.mark.parametrize("name", FREE)
@pytest.mark.parametrize("dynamic", [None, {0: ROWS}, {1: STEPS}, {0: ROWS, 1: STEPS}])
def test_programs_without_recurrent_layers_are_read_whole(name: str, dynamic: Any, tmp_path: Path):
    check_same(saved(tmp_path / "m.pt2", FREE[name], dynamic), FREE[name])


UNCLEAR = {"several outputs by name", "time first, last state"}
"""Models that take one of several states, where as many sequences as features leave the axis open."""


@pytest.mark.long(each=True)
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(("rows", "steps"), [(1, 7), (5, 5), (4, 10)])
def test_sizes_that_are_equal_to_those_of_features_are_told_apart(
    name: str, rows: int, steps: int, tmp_path: Path
):
    model = MODELS[name]
    path = saved(tmp_path / "m.pt2", model, rows=rows, steps=steps)
    if rows == steps and name in UNCLEAR:
        with pytest.raises(ModelError, match=r"of the size of the sequences or steps, which the file fixes"):
            sn.load(path)
    else:
        check_same(path, model)


# ---- refusals ----------------------------------------------------------------------------------------------

LOOP = Code(lambda s, x: torch.stack([x[:, t].tanh() for t in range(x.size(1))], 1), a=gru())
PICKS = ("6", "-7", "-2:", ":6", "-7:1", ":8")
"""Steps that no sequences of other lengths have in the same place, of a program with 7 steps."""
CUTS = ("1:", "6:", ":-1", "::3", "1:-2:2")
ADVICE = r"; its other \d+ are: say --recurrent-only \(Python: recurrent_only=True\)"
REFUSED: dict[str, tuple[Any, str]] = {
    "an operator without a row": (
        Code(lambda s, x: s.rnn(x)[0].logit(), rnn=gru()),
        r"m.pt2: logit \(aten.logit.default\) is an operation that stepnet does not support" + ADVICE,
    ),
    "several of them": (
        Code(lambda s, x: s.rnn(x)[0].logit().topk(2)[0], rnn=gru()),
        r"m.pt2: logit .*, getitem_\d \(aten.topk.default\) are operations that stepnet does not support"
        + ADVICE,
    ),
    "a loop over the steps": (
        LOOP,
        r"aten.select.int: of each sequence, a model can take all steps, the first",
    ),
    "attention weights as an output": (
        Code(lambda s, x: s.att(x, x, x)[1], att=nn.MultiheadAttention(4, 2, batch_first=True)),
        r"is a value at each pair of steps, of which a model returns none",
    ),
    "a mean over the sequences": (
        Code(lambda s, x: s.rnn(x)[0].mean(0), rnn=gru()),
        r"aten.mean.dim: it goes over the sequences of \[sequences, steps, 5\], which mixes them",
    ),
    "all steps as features": (
        Code(lambda s, x: s.out(s.rnn(x)[0].flatten(1)), rnn=gru(), out=nn.Linear(35, 2)),
        r"aten.linear.default: axis 1 of \[sequences, steps x 5\] is not a feature",
    ),
    "a step in the middle of steps in reverse order": (
        Code(lambda s, x: s.rnn(x.flip(1))[0][:, 2], rnn=gru()),
        r"aten.select.int: of each sequence, a model can take all steps, the first, x\[:, 0\], or the last",
    ),
    "an einsum of a diagonal": (
        Code(
            lambda s, x: torch.einsum("btd,dd->bt", s.rnn(x)[0], s.w), rnn=gru(), w=nn.Parameter(torch.eye(5))
        ),
        r"aten.einsum.default: its equation 'btd,dd->bt' does not fit operands of 3, 2 axes, or names",
    ),
    "half precision": (
        Code(lambda s, x: s.rnn(x)[0].half(), rnn=gru()),
        r"aten.to.dtype: a value of dtype float16 is not one of a step",
    ),
    "a learned state for each sequence": (
        Code(learned, rnn=gru(), h=nn.Parameter(torch.rand(1, 1, 5)), out=nn.Linear(5, 2)),
        r"aten.gru.input: its initial states are not .* export the model with a dynamic number of sequences",
    ),
    "a view changed in place": (
        Code(lambda s, x: (lambda y: (y[..., 0].mul_(2), y)[1])(s.rnn(x)[0] + 1), rnn=gru()),
        r"mul_ \(aten.mul_.Tensor\) is an operation that stepnet does not support",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_read_is_refused_by_name(name: str, tmp_path: Path):
    model, words = REFUSED[name]
    with pytest.raises(ModelError, match=re.compile(words, re.DOTALL)):
        sn.load(saved(tmp_path / "m.pt2", model))


@pytest.mark.parametrize("cut", CUTS)
def test_steps_are_left_out_at_both_ends_of_each_sequence(cut: str, tmp_path: Path):
    chosen = slice(*(int(part) if part else None for part in cut.split(":")))
    model = Code(lambda s, x: s.rnn(x)[0][:, chosen], rnn=gru())
    check_same(saved(tmp_path / "m.pt2", model), model, "any")


def test_negative_numbers_of_words_are_outside_the_table_as_in_pytorch(tmp_path: Path):
    model = Code(words, rnn=gru(), **{**WORDS, "tag": nn.Linear(5, 3)}).eval()
    path = saved(tmp_path / "m.pt2", model)
    check_same(path, model)
    for number in (-1, 20):
        with pytest.raises(IndexError):
            model(torch.tensor([[number]]))
        for engine in ("llvm", "interpret"):
            with pytest.raises(InputError, match=r"an integer is outside the rows|index 20 is out of bounds"):
                sn.load(path)(np.array([[number]]), engine=engine)
    source = tmp_path / "in.parquet"
    parquet.write_table(pa.table({"frames": [[1, 2], [-1], [20], [19]]}), source)
    arrow.run(source, path, tmp_path / "out.parquet", bad=tmp_path / "bad.parquet")
    assert parquet.read_table(tmp_path / "bad.parquet")["row"].to_pylist() == [1, 2]


def test_steps_are_left_out_where_their_number_is_open(tmp_path: Path):
    model = Code(lambda s, x: (x[:, 1:] - x[:, :-1]).tanh()[:, ::2], a=nn.Linear(1, 1))
    check_same(saved(tmp_path / "m.pt2", model, {0: ROWS, 1: torch.export.Dim("steps", min=4)}), model)


def test_numbers_of_steps_that_a_file_fixes_are_those_of_each_sequence(tmp_path: Path):
    def code(s: Any, x: Any) -> Any:
        y = s.conv(x.transpose(1, 2))[:, :, : x.size(1)].transpose(1, 2)
        y = s.rnn(y + s.place(torch.arange(x.size(1))))[0]
        last = y[:, -1:].expand(-1, x.size(1), -1)
        return {"all": s.rnn(last)[0], "pairs": y[:, 1:].reshape(x.size(0), 3, 4)}

    model = Code(
        code, rnn=nn.GRU(2, 2, **first()), conv=nn.Conv1d(4, 2, 3, padding=2), place=nn.Embedding(20, 2)
    )
    path = saved(tmp_path / "m.pt2", model, {0: ROWS})
    xs = [each for each in inputs_of(model) if len(each) % 2]
    found = sn.load(path)(sn.Ragged.from_list(xs))
    for place, x in enumerate(xs):
        y = model.rnn(
            model.conv(torch.tensor(x.T)[None])[:, :, : len(x)].transpose(1, 2) + model.place.weight[: len(x)]
        )[0]
        right = {"all": model.rnn(y[:, -1:].expand(-1, len(x), -1))[0], "pairs": y[:, 1:].reshape(1, -1, 4)}
        for name, value in right.items():
            assert_close(found[name].to_list()[place], value[0].detach().numpy(), len(x), 20)


@pytest.mark.parametrize("pick", PICKS)
def test_steps_other_than_all_the_first_and_the_last_are_refused(pick: str, tmp_path: Path):
    place = [int(part) if part else None for part in pick.split(":")]
    chosen = place[0] if len(place) == 1 else slice(*place)
    model = Code(lambda s, x: s.rnn(x)[0][:, chosen], rnn=gru())
    with pytest.raises(
        ModelError, match=r"a model can take all steps, the first|a slice as long as the sequences"
    ):
        sn.load(saved(tmp_path / "m.pt2", model))


@pytest.mark.parametrize("dynamic", [None, ({0: AUTO, 1: AUTO}, {0: AUTO})])
def test_no_input_is_the_lengths_of_the_sequences(dynamic: Any, tmp_path: Path):
    class LastOf(nn.Module):
        def __init__(self):
            super().__init__()
            self.gru = nn.GRU(4, 5, batch_first=True)

        def forward(self, x: Any, lengths: Any) -> Any:
            return self.gru(x)[0][torch.arange(x.shape[0]), lengths - 1]

    arguments = torch.randn(3, 7, 4), torch.tensor([7, 2, 3])
    torch.export.save(torch.export.export(LastOf(), arguments, dynamic_shapes=dynamic), tmp_path / "m.pt2")
    with pytest.raises(ModelError, match=r"at lengths - 1 trace the module, stepnet.torch.graph\(model, \(x"):
        sn.load(tmp_path / "m.pt2")


def test_the_number_of_sequences_is_no_value(tmp_path: Path):
    dims = {0: torch.export.Dim.AUTO, 1: torch.export.Dim.AUTO}
    model = Code(lambda s, x: s.out(x) * x.shape[0], out=nn.Linear(4, 2))
    with pytest.raises(ModelError, match="a value depends on the number sequences"):
        sn.load(saved(tmp_path / "m.pt2", model, dims))


def test_a_learned_state_is_read_if_the_number_of_sequences_is_not_fixed(tmp_path: Path):
    model = REFUSED["a learned state for each sequence"][0]
    check_same(saved(tmp_path / "m.pt2", model, {0: ROWS}), model)


@pytest.mark.parametrize("number", [0, 1])
def test_states_of_one_number_are_for_any_number_of_sequences(number: int, tmp_path: Path):
    def forward(s: Any, x: Any) -> Any:
        state = torch.full((1, x.size(0), 5), float(number))
        return s.lstm(x, (state, s.rnn(x)[1]))[0]

    model = Code(forward, rnn=gru(), lstm=nn.LSTM(4, 5, batch_first=True))
    check_same(saved(tmp_path / "m.pt2", model), model)


def test_one_step_is_not_all_steps(tmp_path: Path):
    model = Code(lambda s, x: s.rnn(x)[0][:, -1], rnn=gru())
    with pytest.raises(
        ModelError, match="the file fixes the number of steps of 'x' to 1: export it with more"
    ):
        sn.load(saved(tmp_path / "m.pt2", model, steps=1))


def test_a_program_in_training_that_changes_its_statistics_is_refused(tmp_path: Path):
    model = Code(lambda s, x: s.norm(x.transpose(1, 2)), norm=nn.BatchNorm1d(4)).train()
    torch.export.save(torch.export.export(model, (torch.randn(3, 7, 4),)), tmp_path / "m.pt2")
    with pytest.raises(ModelError, match=r"m.pt2: add_ \(aten.add_.Tensor\) .*run_decompositions"):
        sn.load(tmp_path / "m.pt2")


def test_changes_in_place_are_functions_after_the_decomposition_that_a_refusal_names(tmp_path: Path):
    model = Code(lambda s, x: (lambda y: (y[..., :2].mul_(2), y + 1)[1])(s.rnn(x)[0] + 1), rnn=gru())
    program = torch.export.export(model.eval(), (torch.randn(3, 7, 4),))
    torch.export.save(program, tmp_path / "m.pt2")
    with pytest.raises(ModelError, match=r"aten.mul_.Tensor\) .*of a program, .run_decompositions\({}\)"):
        sn.load(tmp_path / "m.pt2")
    torch.export.save(program.run_decompositions({}), tmp_path / "n.pt2")
    check_same(tmp_path / "n.pt2", model, "any")


def test_recurrent_layers_that_were_made_to_steps_are_refused_with_the_reason(tmp_path: Path):
    program = torch.export.export(MODELS["gates, stacks and views"].eval(), (torch.randn(3, 7, 4),))
    torch.export.save(program.run_decompositions(), tmp_path / "m.pt2")
    with pytest.raises(ModelError, match=r"run_decompositions\(\) has made steps of its recurrent layers"):
        sn.load(tmp_path / "m.pt2")


def edited(path: Path, old: str, new: str) -> Path:
    """A file with other text in its program."""
    with ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    with ZipFile(path, "w") as archive:
        for name, data in members.items():
            changed = name.endswith("models/model.json")
            assert not changed or old.encode() in data
            archive.writestr(name, data.replace(old.encode(), new.encode()) if changed else data)
    return path


NORM = '"name": "input", "arg": {"as_tensor": '
SIZES = '"layer_norm": {"dtype": 7, "sizes": '
HUGE = '{"as_int": 99999999999999999999}'


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('"major": 8', '"major": 99', "version 99 of torch.export's schema, and versions 5 to 8 are read"),
        (NORM + '{"name": "getitem"}', NORM + '{"name": "none"}', "reads 'none', which is not computed"),
        ('{"as_int": 1}', HUGE, "has '99999999999999999999' where a number"),
        ('"layer_norm": {"dtype": 7', '"layer_norm": {"dtype": 99', "'layer_norm' has no shape and dtype"),
        ('"as_ints": [5]', '"as_ints": 5', "has '5' where a list should be"),
        ('"as_float": 1e-05', '"as_graph": 1', "has an argument of kind 'as_graph', which is not read"),
        ('_name": "norm.bias"', '_name": "none"', "reads 'none', which the file does not hold"),
        (SIZES + '[{"as_int": 3}', SIZES + '[{"as_int": -3}', "a shape that is negative or"),
        ('"as_ints": [5]', '"as_ints": [4, 5]', "do not fit|normalises over"),
        (
            '"name": "normalized_shape"',
            '"name": "other"',
            "arguments .*, not input, normal",
        ),
    ],
)
def test_damaged_programs_are_refused(old: str, new: str, words: str, tmp_path: Path):
    model = Code(lambda s, x: s.norm(s.rnn(x)[0]), rnn=nn.GRU(5, 5, **first()), norm=nn.LayerNorm(5))
    torch.export.save(torch.export.export(model.eval(), (torch.randn(3, 7, 5),)), tmp_path / "m.pt2")
    assert isinstance(sn.load(tmp_path / "m.pt2"), sn.Graph)
    with pytest.raises((FileError, ModelError), match=words) as raised:
        sn.load(edited(tmp_path / "m.pt2", old, new))
    assert str(tmp_path / "m.pt2") in str(raised.value)


def test_an_array_that_only_its_size_describes_is_not_made(tmp_path: Path):
    model = Code(lambda s, x: s.rnn(x)[0] + torch.ones(5), rnn=gru())
    path = saved(tmp_path / "m.pt2", model)
    sizes = '"ones": {"dtype": 7, "sizes": [{"as_int": '
    with pytest.raises(ModelError, match="it makes an array of 100000000 numbers"):
        sn.load(edited(path, f"{sizes}5", f"{sizes}100000000"))


# ---- without PyTorch, and by commands ----------------------------------------------------------------------

ALONE = """
import sys
for name in ("torch", "torch.export"):
    sys.modules[name] = None
import numpy as np
import pyarrow as pa
import stepnet as sn
model = sn.load(sys.argv[1])
np.save(sys.argv[2], model(np.load(sys.argv[3])))
assert sys.modules["torch"] is None
"""


def test_a_program_runs_where_torch_cannot_be_imported(tmp_path: Path):
    model = MODELS["a convolution and batch norm"]
    path = saved(tmp_path / "m.pt2", model)
    x = np.random.default_rng(0).normal(size=(2, 9, 4)).astype("float32")
    np.save(tmp_path / "x.npy", x)
    files = [path, tmp_path / "y.npy", tmp_path / "x.npy"]
    subprocess.run([sys.executable, "-c", ALONE, *map(str, files)], check=True)
    assert_close(np.load(tmp_path / "y.npy"), model(torch.tensor(x)).detach().numpy(), 9, 20)


def ran(*arguments: object) -> str:
    """Runs a command that ends well; returns the text that it prints."""
    code, stdout, stderr = stepnet(*arguments)
    assert code == 0, stderr
    return stdout


def test_commands_take_a_program_whole(tmp_path: Path):
    model = MODELS["a tagger, LSTM both ways"]
    path, out = saved(tmp_path / "m.pt2", model), tmp_path / "out.parquet"
    lists = inputs_of(model)
    parquet.write_table(pa.table({"x": pa.array([each.tolist() for each in lists])}), tmp_path / "in.parquet")
    ran("run", path, tmp_path / "in.parquet", "-o", out)
    (column,) = (parquet.read_table(out).column(at) for at in (-1,))
    for x, found in zip(lists, column.to_pylist(), strict=True):
        right = model(torch.tensor(x)[None])[0].detach().numpy()
        assert_close(np.float32(found), right, len(x), 20)
    assert "embed.weight" in ran("show", path)


def test_a_program_is_saved_as_a_model_of_stepnet(tmp_path: Path):
    model = MODELS["several outputs by name"]
    sn.load(saved(tmp_path / "m.pt2", model)).save(tmp_path / "m.stepnet")
    check_same(tmp_path / "m.stepnet", model)


def test_an_archive_of_older_versions_of_pytorch_is_read(tmp_path: Path):
    model = MODELS["a tagger, LSTM both ways"]
    with ZipFile(saved(tmp_path / "m.pt2", model)) as archive:
        (program,) = (archive.read(name) for name in archive.namelist() if name.endswith("models/model.json"))
    with ZipFile(tmp_path / "older.pt2", "w") as archive:
        archive.writestr("serialized_exported_program.json", program)
        for name, held in {"state_dict": dict(model.state_dict()), "constants": {}}.items():
            torch.save(held, stream := BytesIO())
            archive.writestr(f"serialized_{name}.pt", stream.getvalue())
    check_same(tmp_path / "older.pt2", model)


def test_a_program_is_converted_and_runs_over_a_folder(tmp_path: Path):
    model = MODELS["a convolution and batch norm"]
    path, lists = saved(tmp_path / "m.pt2", model), inputs_of(model)
    assert "largest difference 0" in ran("convert", path, tmp_path / "m.stepnet", "--verify")
    (tmp_path / "in").mkdir()
    parquet.write_table(pa.table({"x": [each.tolist() for each in lists]}), tmp_path / "in" / "a.parquet")
    arrow.run(tmp_path / "in", sn.load(path), tmp_path / "out", result="outputs")
    found = parquet.read_table(tmp_path / "out" / "a.parquet").column(-1).to_pylist()
    for x, ours in zip(lists, found, strict=True):
        assert_close(np.float32(ours), model(torch.tensor(x)[None])[0].detach().numpy(), len(x), 20)


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")
@pytest.mark.parametrize("kind", ["pickled", "scripted"])
def test_code_is_refused_with_the_recipe(kind: str, tmp_path: Path):
    model = nn.Sequential(nn.Linear(4, 3), nn.GRU(3, 4, batch_first=True))
    path = tmp_path / "m.pt"
    if kind == "pickled":
        torch.save(model, path)
    else:
        torch.jit.script(model).save(path)
    with pytest.raises(
        StepnetError, match=r"torch.export.save\(torch.export.export\(model.eval\(\), \(example,\)"
    ):
        sn.load(path)


# ---- each row of the table ---------------------------------------------------------------------------------

W, B = torch.randn(4, 4), torch.randn(4)
K, D = torch.randn(4, 4, 3), torch.rand(4) + 0.5


def channels(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A function of [sequences, features, steps], of which the features come last again."""
    return lambda x: function(x.transpose(1, 2)).transpose(1, 2)


OPERATIONS: dict[str, Callable[[Any], Any]] = {
    "silu.default": F.silu,
    "square.default": torch.square,
    "softplus.default": lambda x: F.softplus(9 * x, 2, 10),
    "mish.default": F.mish,
    "log_sigmoid.default": F.logsigmoid,
    "hardsigmoid.default": F.hardsigmoid,
    "hardswish.default": F.hardswish,
    "relu6.default": lambda x: F.relu6(9 * x),
    "selu.default": F.selu,
    "rsub.Scalar": lambda x: 1 - x,
    "masked_fill.Scalar": lambda x: x.masked_fill(x > 0, 0.5),
    "where.ScalarOther": lambda x: torch.where(x > 0, x, 0.5),
    "where.ScalarSelf": lambda x: torch.where(x > 0, 0.5, x),
    "where.Scalar": lambda x: torch.where(x > 0, 0.5, -0.5),
    "dropout.default": lambda x: F.dropout(x, 0.5, False),
    "feature_dropout.default": lambda x: F.dropout1d(x, 0.5, False),
    "alpha_dropout.default": lambda x: F.alpha_dropout(x, 0.5, False),
    "arange.default": lambda x: x + torch.arange(4),
    "arange.start": lambda x: x + torch.arange(2, 6),
    "arange.start_step": lambda x: x + torch.arange(2, 10, 2),
    "repeat.default": lambda x: x.repeat(1, 1, 3),
    "transpose.int": lambda x: x.transpose(1, 2).transpose(-1, -2),
    "t.default": lambda x: x @ W.t(),
    "permute.default": lambda x: x.permute(2, 0, 1).permute(1, 2, 0),
    "stack.default": lambda x: torch.stack([x, x * 2], 2),
    "split.Tensor": lambda x: torch.cat(x.split(3, -1)[::-1], -1),
    "split_with_sizes.default": lambda x: x.split([1, 3], -1)[1],
    "chunk.default": lambda x: x.chunk(2, -1)[1],
    "unbind.int": lambda x: x.unbind(-1)[2],
    "narrow.default": lambda x: x.narrow(-1, 1, 2),
    "reshape.default": lambda x: x.reshape(-1, 4).tanh().reshape(3, 7, 4),
    "flatten.using_ints": lambda x: x.unsqueeze(2).flatten(2),
    "unflatten.int": lambda x: x.unflatten(-1, (2, 2)),
    "squeeze.dim": lambda x: x.unsqueeze(-1).squeeze(-1),
    "squeeze.default": lambda x: x.unsqueeze(-1).squeeze(),
    "view_as.default": lambda x: (x * 2).unflatten(-1, (2, 2)).contiguous().view_as(x),
    "expand_as.default": lambda x: x[..., :1].expand_as(x) * x,
    "embedding.default": lambda x: F.embedding((x > 0).long(), W),
    "linear.default": lambda x: F.linear(x, W, B),
    "matmul.default": lambda x: torch.matmul(x, W),
    "batch_norm.default": channels(lambda x: F.batch_norm(x, B, D, D, B)),
    "conv1d.default": channels(lambda x: F.conv1d(x, K, B, padding=1)),
    "conv1d.padding": channels(lambda x: F.conv1d(x, K, padding="same")),
    "conv_transpose1d.default": channels(lambda x: F.conv_transpose1d(x, K, B, padding=1)),
    "pad.default": lambda x: F.pad(x, (1, 2), value=3),
    "softmax.int": lambda x: x.softmax(-1),
    "log_softmax.int": lambda x: x.log_softmax(-1),
    "zeros.default": lambda x: torch.cat([x, torch.zeros(4) + x], -1),
    "ones.default": lambda x: x + torch.ones(4),
    "full.default": lambda x: x + torch.full((4,), 2.5),
    "zeros_like.default": lambda x: torch.cat([x, torch.zeros_like(x)], -1),
    "ones_like.default": lambda x: x - torch.ones_like(x),
    "full_like.default": lambda x: x * torch.full_like(x, 2.5),
    "new_zeros.default": lambda x: x + x.new_zeros(4),
    "new_ones.default": lambda x: x + x.new_ones(4),
    "new_full.default": lambda x: x + x.new_full((4,), 1.5),
    "to.dtype": lambda x: x.to(torch.float64),
    "type_as.default": lambda x: (x > 0).type_as(x),
    "contiguous.default": lambda x: x.transpose(1, 2).contiguous().transpose(1, 2),
    "max_pool1d.default": channels(lambda x: F.max_pool1d(x, 3, 1, 1)),
    "avg_pool1d.default": channels(lambda x: F.avg_pool1d(x, 3, 1, 1, count_include_pad=False)),
    "adaptive_max_pool1d.default": channels(lambda x: x + F.adaptive_max_pool1d(x, 1)),
    "adaptive_avg_pool1d.default": channels(lambda x: x + F.adaptive_avg_pool1d(x, 1)),
    "layer_norm.default": lambda x: F.layer_norm(x, (4,), B),
    "elu.default": lambda x: F.elu(x, 0.5),
    "clamp.default": lambda x: x.clamp(max=0.3),
    "max.dim": lambda x: x.max(-1).values,
    "argmax.default": lambda x: x.argmax(-1),
    "cumsum.default": lambda x: x.cumsum(1),
    "sum.dim_IntList": lambda x: x.sum(-1, keepdim=True),
    "any.dim": lambda x: (x > 1).any(-1),
    "slice.Tensor": lambda x: x[..., 1:3],
    "index_select.default": lambda x: x.index_select(-1, torch.tensor([2, 0])),
    "flip.default": lambda x: x.flip(-1),
    "einsum.default": lambda x: torch.einsum("...i,ij,kj->...k", x, W, W),
    "glu.default": F.glu,
    "prelu.default": lambda x: F.prelu(x, B[:1]),
    "group_norm.default": channels(lambda x: F.group_norm(x, 2, B, D)),
    "std.correction": lambda x: x.std(-1, correction=0),
    "std.dim": lambda x: x.std(-1, unbiased=True),
    "var.correction": lambda x: x.var(-1, correction=2),
    "var.dim": lambda x: x.var(-1, unbiased=False, keepdim=True),
    "reflection_pad1d.default": lambda x: torch.ops.aten.reflection_pad1d(x, (1, 3)),
    "replication_pad1d.default": channels(
        lambda x: F.avg_pool1d(torch.ops.aten.replication_pad1d(x, (2, 1)), 4, 1)
    ),
    "reflection_pad2d.default": lambda x: torch.ops.aten.reflection_pad2d(x, (1, 2, 0, 0)),
    "replication_pad2d.default": lambda x: torch.ops.aten.replication_pad2d(x, (0, 1, 0, 0)),
}
"""A use of each operation: all that only files have, and some of those that traces have too."""
WITHOUT = {
    *("sum.default", "mean.default", "std.default", "var.default"),  # over all sequences
    *("_native_batch_norm_legit_no_training.default", "convolution.default"),  # of decomposed programs
    *("gru.input", "lstm.input", "rnn_tanh.input", "rnn_relu.input"),  # above
    *(
        "to.device",
        "to.dtype_layout",
        "to.other",
        "rsub.Tensor",
        "sub.Scalar",
        "div.Scalar",
        "masked_fill.Tensor",
    ),
}
"""Rows that no function of PyTorch is exported to alone, or that are refused."""


@pytest.fixture(scope="module")
def operations(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any, set[str]]:
    """A model of all operations, its graph, and the names of the operations in its program."""
    model = Code(lambda s, x: {name: function(x) for name, function in OPERATIONS.items()})
    path = tmp_path_factory.mktemp("operations") / "m.pt2"
    program = torch.export.export(model, (torch.randn(3, 7, 4),))
    torch.export.save(program, path)
    targets = {str(node.target).removeprefix("aten.") for node in program.graph.nodes}
    return model, sn.load(path, steps="any"), targets


def test_these_operations_are_in_the_program(operations: tuple[Any, Any, set[str]]):
    assert set(OPERATIONS) <= operations[2]
    assert {*OPERATIONS, *WITHOUT} <= set(EXPORTED)


@pytest.mark.parametrize("name", OPERATIONS)
def test_an_operation_computes_what_pytorch_computes(name: str, operations: tuple[Any, Any, set[str]]):
    _, graph, _ = operations
    xs = [np.random.default_rng(length).normal(size=(length, 4)).astype("float32") for length in LENGTHS]
    found = graph(sn.Ragged.from_list(xs))[name].to_list()
    for x, ours in zip(xs, found, strict=True):
        if name == "reshape.default":
            right = torch.tensor(x).tanh()
        else:
            right = OPERATIONS[name](torch.tensor(x)[None]).reshape(len(x), *ours.shape[1:])
        assert_close(ours, right.numpy(), len(x), 20)


def test_a_program_that_is_refused_for_what_it_was_exported_from_says_what_to_do(tmp_path: Path):
    class Last(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn, self.out = nn.GRU(3, 4, batch_first=True), nn.Linear(4, 2)

        def forward(self, x: Any) -> Any:
            return self.out(self.rnn(x)[0][:, -1])

    path, accelerated = tmp_path / "m.pt2", Last()
    stepnet_torch.accelerate(accelerated)
    x = torch.zeros(2, 5, 3)
    for model, example, said in (
        (accelerated, x, r"\(stepnet.recurrence.default\) is .*accelerated, call undo\(\) first"),
        (
            Last().bfloat16(),
            x.bfloat16(),
            r"holds bfloat16; use one of .*: export model.float\(\), or save st",
        ),
    ):
        torch.export.save(torch.export.export(model, (example,)), path)
        with pytest.raises(ModelError, match=said):
            sn.load(path)
