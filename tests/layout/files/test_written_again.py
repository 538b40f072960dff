"""Files of several layers, verified as they were written: of the corpus that the frameworks saved."""

from pathlib import Path

import pytest
from command_line import refusal, stepnet

from tests.peers.corpus.specimens import unpack

USUAL = ("--semantics", "gate_activation=sigmoid", "--semantics", "candidate_activation=tanh")
LSTM = ("--semantics", "output_activation=tanh")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of the frameworks, each in a folder of its own."""
    folder = tmp_path_factory.mktemp("corpus")
    for framework in ("torch", "keras", "tensorflow", "jax"):
        (folder / framework).mkdir()
        unpack(framework, folder / framework)
    return folder


@pytest.mark.parametrize(("to", "file"), [("torch", "new.safetensors"), ("tf1", "new.npz")])
def test_layers_are_found_again_by_their_names(made: Path, tmp_path: Path, to: str, file: str):
    """A file of safetensors has them in another order, and names in an .npz do not tell what they are."""
    source = made / "torch" / "state.pt"
    code, text, errors = stepnet("convert", source, "--to", to, "-o", tmp_path / file, "--verify")
    assert (code, errors, text.count("): largest difference ")) == (0, "", 2)


def test_a_row_is_verified_in_its_order(made: Path, tmp_path: Path):
    """A file of weights has layers in the order of their classes' names."""
    out = tmp_path / "new.weights.h5"
    code, text, errors = stepnet(
        "convert", made / "keras" / "row.keras", "--to", "keras", "-o", out, "--verify"
    )
    assert (code, errors, text.count("): largest difference 0 ")) == (0, "", 1)


def test_weights_alone_do_not_say_how_a_layer_runs(made: Path, tmp_path: Path):
    for file, layer, said in (
        (
            "backwards.keras",
            "steps",
            "it runs from each sequence's last step, which the new file does not say",
        ),
        ("merges.keras", "mul", "its directions are merged by product, which the new file does not say"),
    ):
        options = ("--module", layer, "--to", "keras", "-o", tmp_path / f"{layer}.weights.h5", "--verify")
        code, text, errors = stepnet("convert", made / "keras" / file, *options)
        assert (code, errors) == (0, "")
        assert f"  note: {said}\n" in text
        options = ("--module", layer, "--to", "keras", "-o", tmp_path / f"{layer}.keras", "--verify")
        code, text, _ = stepnet("convert", made / "keras" / file, *options)
        assert code == 0
        assert said not in text


def test_what_is_said_of_lstms_is_not_said_of_a_gru_beside_them(made: Path, tmp_path: Path):
    source, out = made / "tensorflow" / "saved", tmp_path / "new.pt"
    code, _, errors = stepnet("convert", source, "--to", "torch", "-o", out, "--verify", *USUAL, *LSTM)
    assert (code, errors) == (0, "")
    alone = made / "jax" / "haiku_gru.npz"
    said = refusal("convert", alone, "--from", "haiku.gru", "--to", "onnx", "-o", tmp_path / "o.onnx", *LSTM)
    assert "the cell gru has no 'output_activation'" in said
