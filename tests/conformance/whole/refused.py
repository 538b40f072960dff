"""The models of saved/ that are refused, with words of the error."""

REFUSED: dict[str, str] = {
    "onnx/rows_of_sklearn": "Scaler not supported",
    "onnx/unrolled": "it selects step 1",
    "onnx/voice": "steps of zeros are put around sequences, which only a convolution may read",
    "pt2/enhancer": "it combines values with different numbers of steps",
    "pt2/unrolled": "lstm_cell",
    "keras2/lambda_last": "it has lambda (Lambda)",
}
"""Words of the error by model, as kind/name."""
