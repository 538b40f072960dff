"""The command line over models that frameworks made: a result is the framework's own, or there is none.

For every model, `stepnet run FILE input -o out` gives what the framework gives, for each sequence alone and
for the padded batch, or exits with 1 and says by name what stands around the recurrence, or that a file of
weights has no architecture. `VERDICTS` says which of these it is.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
from command_line import refusal, stepnet
from tolerance import assert_close

from tests.conformance.corpus import MODELS, STATES, Call, Model, calls, named, unpack

WIDTH = 32  # the largest number of products that a model of the corpus adds up

WHOLE, RECURRENT, REFUSED, WEIGHTS = "whole", "recurrent only", "refused", "no architecture"
VERDICTS = {
    ("keras", RECURRENT): """
        lstm_steps lstm_last gru_steps gru_reset_before simple_rnn_steps simple_rnn_relu_last
        lstm_both_concat gru_both_sum simple_rnn_both_mul lstm_both_ave_last lstm_stack_last mixed_stack
        gru_backwards_last rnn_of_cells lstm_hard gru_without_bias gru_unrolled gru_stack_h5
    """,
    ("keras", WHOLE): """
        characters sensors voice_activity deep_speech forecaster standardised rescaled normalised_stack
        residual dense_before leaky padded_convolution attention attention_pooling two_outputs head_h5
        model_in_model only_one_step sentiment sentiment_averaged tagger masked_classifier masked_steps
        masked_both pooled pictures_of_lines convolution_in_the_cell
        autoencoder heads gru_both_apart lstm_forward_gru_backward lstm_states lstm_stateful stateful_head
        lstm_backwards masked_backwards
    """,
    ("keras", REFUSED): """
        tagger_of_two_inputs siamese captions translator frames_and_context
        flattened lstm_bent lambda_before
        layer_of_the_user cell_of_the_user
    """,
    ("keras", WEIGHTS): "head_weights stack_weights",
    ("tensorflow", RECURRENT): """
        gru_h5_keras_2 stack_h5_keras_2 lstm_keras_keras_2 lstm_savedmodel lstm_tflite
    """,
    ("tensorflow", WHOLE): """
        sensors_h5_keras_2 normalised_keras_keras_2 head_tflite sensors_tflite
        sentiment_h5_keras_2 masked_h5_keras_2 backwards_h5_keras_2
    """,
    ("tensorflow", REFUSED): """
        sentiment_savedmodel sensors_savedmodel masked_savedmodel
    """,
    ("tensorflow", WEIGHTS): """
        head_weights_h5_keras_2 lstm_tensorflow_checkpoint head_tensorflow_checkpoint
    """,
    ("torch", RECURRENT): "lstm_steps_pt2",
    ("torch", WHOLE): "by_last_state_pt2 tagger_pt2 voice_pt2 residual_pt2 gru_pt2",
    ("torch", REFUSED): """
        voice_traced speech_traced tagger_scripted
        lines_pickled by_last_state_pickled lstm_steps_traced gru_both_steps_scripted
        lstm_stack_both_pickled gru_pickled
    """,
    ("torch", WEIGHTS): """
        lstm_projected_state by_last_output_state packed_state residual_checkpoint rnn_tanh_safetensors
        lstm_without_bias_safetensors tagger_safetensors conditioned_safetensors
    """,
    ("flax", WEIGHTS): "classifier_msgpack stack_msgpack classifier_orbax",
    ("coreml", REFUSED): "by_last_state_coreml voice_coreml lstm_steps_coreml",
    ("paddle", WHOLE): "lstm_steps_program gru_both_program classifier_program tagger_program speech_program",
    ("paddle", WEIGHTS): "gru_both_weights speech_weights",
    ("onnx", WHOLE): """
        lstm_legacy lstm_steps_legacy lstm_time_major_legacy lstm_stack_both_legacy gru_legacy
        gru_stack_legacy gru_both_steps_legacy rnn_tanh_legacy rnn_relu_stack_both_legacy
        by_last_state_legacy by_both_last_states_legacy by_last_output_legacy tagger_legacy
        language_legacy speech_legacy packed_legacy residual_legacy pooled_legacy sensors_legacy
        two_outputs_legacy lstm_dynamo lstm_steps_dynamo lstm_stack_both_dynamo gru_stack_dynamo
        gru_both_steps_dynamo by_last_state_dynamo by_last_output_dynamo tagger_dynamo language_dynamo
        residual_dynamo pooled_dynamo sensors_dynamo two_outputs_dynamo voice_legacy voice_dynamo
        wake_word_legacy attention_legacy lines_legacy lines_dynamo
    """,
    ("onnx", REFUSED): """
        rnn_tanh_dynamo
        translator_legacy streaming_legacy conditioned_legacy translator_dynamo
        streaming_dynamo conditioned_dynamo
    """,
    ("openvino", WHOLE): "tagger_openvino voice_openvino by_last_state_openvino gru_openvino",
}
"""The models of each archive that run whole, that have nothing but recurrent layers, that have more and
are refused, and that are weights alone."""

REASONS = {
    "torch/lstm_steps_traced": "it is a program of TorchScript",
    "torch/gru_both_steps_scripted": "it is a program of TorchScript",
    "torch/lstm_stack_both_pickled": "it is a pickled torch.nn.modules.rnn.LSTM",
    "torch/gru_pickled": "it is a pickled torch.nn.modules.rnn.GRU",
    "coreml/lstm_steps_coreml": "(transpose)",
}
"""Models of recurrent layers alone that are refused: for a way to use these layers that is not run yet, for
operators that only move numbers, or as code. The words that the refusal has."""


VERDICT = {
    f"{place}/{name}": verdict for (place, verdict), names in VERDICTS.items() for name in names.split()
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All files of the corpus, in a folder for each archive."""
    found = tmp_path_factory.mktemp("corpus")
    unpack(found)
    return found


def test_each_model_has_one_verdict():
    stated = [f"{archive}/{name}" for (archive, _), names in VERDICTS.items() for name in names.split()]
    assert sorted(stated) == sorted(model.title for model in MODELS)
    assert len(MODELS) >= 100


def written(path: Path, inputs: list[dict[str, np.ndarray]]) -> Path:
    """A file with a column for each input of a model: lists of steps, each a number or lists of numbers."""
    columns = {}
    for name, first in inputs[0].items():
        kind = pa.from_numpy_dtype(first.dtype)
        for _ in first.shape:
            kind = pa.list_(kind)
        columns[name] = pa.array([row[name].tolist() for row in inputs], kind)
    parquet.write_table(pa.table(columns), path)
    return path


def results(table: pa.Table, call: Call) -> list[dict[str, Any]]:
    """The outputs of each sequence by the framework's names.

    They are columns beside those of the inputs, or the fields of one. Those of a single column are the first
    output, whatever the column is called, and several that have other names have them in order.
    """
    names = list(call.outputs[0])
    rows = table.select([name for name in table.column_names if name not in call.inputs[0]]).to_pylist()
    rows = [next(iter(row.values())) if len(row) == 1 else row for row in rows]
    rows = [row if isinstance(row, dict) else {names[0]: row} for row in rows]
    return [row if set(row) <= set(names) else dict(zip(names, row.values(), strict=True)) for row in rows]


def check_equal(table: pa.Table, call: Call, length: int) -> None:
    """Asserts that all results are the framework's. Last states of a recurrent layer may be left out."""
    names = set(call.outputs[0])
    for found, right in zip(results(table, call), call.outputs, strict=True):
        assert set(found) <= names
        assert names - set(found) <= STATES
        for name, numbers in found.items():
            array = np.asarray(numbers, np.float32)
            assert array.size == right[name].size, f"{name}: shape {array.shape} is not {right[name].shape}"
            assert_close(array.reshape(right[name].shape), right[name], length, WIDTH)


@pytest.mark.long(every=8)
@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.title)
def test_a_model_gives_what_its_framework_gives_or_is_refused_by_name(
    model: Model, folder: Path, tmp_path: Path
):
    path, out = folder / model.archive / model.file, tmp_path / "out.parquet"
    for title, call in calls(model, folder).items():
        source = written(tmp_path / f"{title}.parquet", call.inputs)
        run = ("run", path, source, "-o", out, "--force")
        if VERDICT[model.title] in (REFUSED, WEIGHTS):
            said = refusal(*run)
            asked = {"no architecture"} if VERDICT[model.title] == WEIGHTS else model.names
            assert model.file in said, f"is not about the model: {said}"
            if model.title in REASONS:
                assert REASONS[model.title] in said
            else:
                assert named(said, asked), f"has none of {sorted(asked)}: {said}"
            assert not out.exists()
            continue
        steps = len(call.inputs[0][model.sequences])
        last = VERDICT[model.title] == RECURRENT and len(call.outputs[0][model.outputs[0]]) != steps
        # Of recurrent layers, the command gives the outputs of all steps unless it is asked for the last.
        code, _, said = stepnet(*run, *(("--result", "last") if last else ()))
        assert (code, said) == (0, "")
        check_equal(parquet.read_table(out), call, steps)
