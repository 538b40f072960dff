"""The models of saved/ that are refused, with words of the error."""

LENGTHS = "have sequences of different lengths"

REFUSED: dict[str, str] = {
    "onnx/attending": "it computes a part of the number of sequences or of steps",
    "onnx/rows_of_sklearn": "Scaler not supported",
    "onnx/sentence_pair": "runs over [steps, sequences, features]",
    "onnx/speech_decoder": "a body reads one step of a sequence at a time",
    "onnx/unrolled": "it selects step 1",
    "onnx/voice": "steps of zeros are put around sequences, which only a convolution may read",
    "pt2/enhancer": "it combines values with different numbers of steps",
    "pt2/sentence_pair": "inputs state different numbers of steps",
    "pt2/unrolled": "lstm_cell",
    "keras/backwards": "has its steps last first",
    "keras/siamese_cosine": LENGTHS,
    "keras/translator": LENGTHS,
    "keras/translator_with_attention": LENGTHS,
    "keras/vocoder": "joined in different orders: [steps] and [steps[*4+0]]",
    "h5/both_encoder": LENGTHS,
    "keras2/lambda_last": "it has lambda (Lambda)",
    "keras2/translator": LENGTHS,
}
"""Words of the error by model, as kind/name."""
