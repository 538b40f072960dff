"""TensorFlow Lite's names: of operators by their numbers, and of the inputs and options of recurrent ones.

The arrays and settings of each layout, with the names of activations, are in `layout/records/tflite.py`.

Source: BuiltinOperator, ActivationFunctionType and the tables of options in
tensorflow/compiler/mlir/lite/schema/schema.fbs of TensorFlow 2.21; tensorflow/lite/kernels/lstm_shared.h and
others beside it for the inputs.
"""

from collections.abc import Mapping
from typing import Any

from stepnet.compiler.values.records import dataclass

# Names of sizes, the same in all inputs of an operator; () for an input that is no weight.
Axes = tuple[str, ...]
Option = tuple[str, str, Any]  # its name, its kind as for `struct`, its default

NAMES = """
    ADD AVERAGE_POOL_2D CONCATENATION CONV_2D DEPTHWISE_CONV_2D DEPTH_TO_SPACE DEQUANTIZE
    EMBEDDING_LOOKUP FLOOR FULLY_CONNECTED HASHTABLE_LOOKUP L2_NORMALIZATION L2_POOL_2D
    LOCAL_RESPONSE_NORMALIZATION LOGISTIC LSH_PROJECTION LSTM MAX_POOL_2D MUL RELU RELU_N1_TO_1 RELU6
    RESHAPE RESIZE_BILINEAR RNN SOFTMAX SPACE_TO_DEPTH SVDF TANH CONCAT_EMBEDDINGS SKIP_GRAM CALL CUSTOM
    EMBEDDING_LOOKUP_SPARSE PAD UNIDIRECTIONAL_SEQUENCE_RNN GATHER BATCH_TO_SPACE_ND SPACE_TO_BATCH_ND
    TRANSPOSE MEAN SUB DIV SQUEEZE UNIDIRECTIONAL_SEQUENCE_LSTM STRIDED_SLICE BIDIRECTIONAL_SEQUENCE_RNN
    EXP TOPK_V2 SPLIT LOG_SOFTMAX DELEGATE BIDIRECTIONAL_SEQUENCE_LSTM CAST PRELU MAXIMUM ARG_MAX
    MINIMUM LESS NEG PADV2 GREATER GREATER_EQUAL LESS_EQUAL SELECT SLICE SIN TRANSPOSE_CONV
    SPARSE_TO_DENSE TILE EXPAND_DIMS EQUAL NOT_EQUAL LOG SUM SQRT RSQRT SHAPE POW ARG_MIN FAKE_QUANT
    REDUCE_PROD REDUCE_MAX PACK LOGICAL_OR ONE_HOT LOGICAL_AND LOGICAL_NOT UNPACK REDUCE_MIN FLOOR_DIV
    REDUCE_ANY SQUARE ZEROS_LIKE FILL FLOOR_MOD RANGE RESIZE_NEAREST_NEIGHBOR LEAKY_RELU
    SQUARED_DIFFERENCE MIRROR_PAD ABS SPLIT_V UNIQUE CEIL REVERSE_V2 ADD_N GATHER_ND COS WHERE RANK ELU
    REVERSE_SEQUENCE MATRIX_DIAG QUANTIZE MATRIX_SET_DIAG ROUND HARD_SWISH IF WHILE
    NON_MAX_SUPPRESSION_V4 NON_MAX_SUPPRESSION_V5 SCATTER_ND SELECT_V2 DENSIFY SEGMENT_SUM BATCH_MATMUL
    PLACEHOLDER_FOR_GREATER_OP_CODES CUMSUM CALL_ONCE BROADCAST_TO RFFT2D CONV_3D IMAG REAL COMPLEX_ABS
    HASHTABLE HASHTABLE_FIND HASHTABLE_IMPORT HASHTABLE_SIZE REDUCE_ALL CONV_3D_TRANSPOSE VAR_HANDLE
    READ_VARIABLE ASSIGN_VARIABLE BROADCAST_ARGS RANDOM_STANDARD_NORMAL BUCKETIZE RANDOM_UNIFORM
    MULTINOMIAL GELU DYNAMIC_UPDATE_SLICE RELU_0_TO_1 UNSORTED_SEGMENT_PROD UNSORTED_SEGMENT_MAX
    UNSORTED_SEGMENT_SUM ATAN2 UNSORTED_SEGMENT_MIN SIGN BITCAST BITWISE_XOR RIGHT_SHIFT
    STABLEHLO_LOGISTIC STABLEHLO_ADD STABLEHLO_DIVIDE STABLEHLO_MULTIPLY STABLEHLO_MAXIMUM
    STABLEHLO_RESHAPE STABLEHLO_CLAMP STABLEHLO_CONCATENATE STABLEHLO_BROADCAST_IN_DIM
    STABLEHLO_CONVOLUTION STABLEHLO_SLICE STABLEHLO_CUSTOM_CALL STABLEHLO_REDUCE STABLEHLO_ABS
    STABLEHLO_AND STABLEHLO_COSINE STABLEHLO_EXPONENTIAL STABLEHLO_FLOOR STABLEHLO_LOG STABLEHLO_MINIMUM
    STABLEHLO_NEGATE STABLEHLO_OR STABLEHLO_POWER STABLEHLO_REMAINDER STABLEHLO_RSQRT STABLEHLO_SELECT
    STABLEHLO_SUBTRACT STABLEHLO_TANH STABLEHLO_SCATTER STABLEHLO_COMPARE STABLEHLO_CONVERT
    STABLEHLO_DYNAMIC_SLICE STABLEHLO_DYNAMIC_UPDATE_SLICE STABLEHLO_PAD STABLEHLO_IOTA
    STABLEHLO_DOT_GENERAL STABLEHLO_REDUCE_WINDOW STABLEHLO_SORT STABLEHLO_WHILE STABLEHLO_GATHER
    STABLEHLO_TRANSPOSE DILATE STABLEHLO_RNG_BIT_GENERATOR REDUCE_WINDOW STABLEHLO_COMPOSITE
    STABLEHLO_SHIFT_LEFT STABLEHLO_CBRT STABLEHLO_CASE
"""
OPERATORS = NAMES.split()
CODES = {name: code for code, name in enumerate(OPERATORS)}
CUSTOM, CONCATENATION, DEQUANTIZE, TRANSPOSE, REVERSE = (
    CODES[name] for name in ("CUSTOM", "CONCATENATION", "DEQUANTIZE", "TRANSPOSE", "REVERSE_V2")
)
OPTIONS_TYPES = {CONCATENATION: 10, REVERSE: 81}
"""The schema's numbers of the options' types of the other operators that are written."""
ACTIVATIONS = ("NONE", "RELU", "RELU_N1_TO_1", "RELU6", "TANH", "SIGN_BIT")
KERNELS = ("FULL", "BASIC")


def operator_name(code: int, custom: str) -> str:
    """Returns the name of an operator by its number, `code`. custom: the name that the file has for an
    operator that is not one of TensorFlow Lite's.

    >>> operator_name(9, ""), operator_name(32, "FlexErf"), operator_name(1000, "")
    ('FULLY_CONNECTED', 'FlexErf', 'operator 1000')
    """
    if code == CUSTOM and custom:
        return custom
    return OPERATORS[code] if code < len(OPERATORS) else f"operator {code}"


@dataclass(frozen=True)
class OperatorKind:
    """A recurrent operator of TensorFlow Lite.

    inputs: its inputs in order.
    options_type: the schema's number of its options' type.
    options: its options in order.
    version: the version of the operator that is written.
    least: the least number of inputs that are written, missing ones included.
    """

    name: str
    inputs: Mapping[str, Axes]
    options_type: int
    options: tuple[Option, ...]
    version: int = 1
    least: int = 0


GATES = ("input", "forget", "cell", "output")
LSTM: dict[str, Axes] = {
    **{f"input_to_{gate}_weights": ("cell", "input") for gate in GATES},
    **{f"recurrent_to_{gate}_weights": ("cell", "output") for gate in GATES},
    **{f"cell_to_{gate}_weights": ("cell",) for gate in ("input", "forget", "output")},
    **{f"{gate}_gate_bias": ("cell",) for gate in GATES},
    "projection_weights": ("output", "cell"),
    "projection_bias": ("output",),
}
NORMS: dict[str, Axes] = {f"{gate}_layer_norm_coefficients": ("cell",) for gate in GATES}
RNN: dict[str, Axes] = {
    "input_weights": ("cell", "input"),
    "recurrent_weights": ("cell", "cell"),
    "bias": ("cell",),
}

# Inputs that an operator has all or none of, and all inputs that may be missing.
TOGETHER = (
    ("input_to_input_weights", "recurrent_to_input_weights", "input_gate_bias"),
    ("cell_to_forget_weights", "cell_to_output_weights"),
    tuple(name for name in NORMS if not name.startswith("input")),
)
OPTIONAL = {*sum(TOGETHER, ()), *NORMS, "cell_to_input_weights", "projection_weights", "projection_bias"}


def both_directions(inputs: Mapping[str, Axes], shared: Axes) -> dict[str, Axes]:
    """Returns the axes of the inputs of a bidirectional TFLite operator, forward first, by the names with the
    prefixes "fw_" and "bw_". Axes with the prefixes may differ in size between the directions.

    inputs: the axes of the inputs of one direction, by name. shared: the axes whose sizes both directions
    have in common, which get no prefix.
    """
    return {
        f"{direction}_{name}": tuple(axis if axis in shared else f"{direction}_{axis}" for axis in axes)
        for direction in ("fw", "bw")
        for name, axes in inputs.items()
    }


def states(*names: str) -> dict[str, Axes]:
    """Returns () for each name of an input that is no weight: shapes of states are not checked."""
    return dict.fromkeys(names, ())


ACTIVATION = ("fused_activation_function", "b", 0)
CLIPS = (("cell_clip", "f", 0.0), ("proj_clip", "f", 0.0))
ASYMMETRIC = ("asymmetric_quantize_inputs", "?", False)
MERGE = ("merge_outputs", "?", False)
TIME = ("time_major", "?", False)
ONE_STEP = (ACTIVATION, *CLIPS, ("kernel_type", "b", 0), ASYMMETRIC)
FULL = {**states("input"), **LSTM, **states("output_state", "cell_state"), **NORMS}

RECURRENT = (
    OperatorKind("LSTM", FULL, 14, ONE_STEP),
    OperatorKind("RNN", {**states("input"), **RNN, **states("hidden_state")}, 7, (ACTIVATION, ASYMMETRIC)),
    OperatorKind(
        "UNIDIRECTIONAL_SEQUENCE_RNN",
        {**states("input"), **RNN, **states("hidden_state")},
        31,
        (TIME, ACTIVATION, ASYMMETRIC),
    ),
    OperatorKind(
        "UNIDIRECTIONAL_SEQUENCE_LSTM",
        FULL,
        71,
        (ACTIVATION, *CLIPS, TIME, ASYMMETRIC, ("diagonal_recurrent_tensors", "?", False)),
    ),
    OperatorKind(
        "BIDIRECTIONAL_SEQUENCE_RNN",
        {
            **states("input"),
            **both_directions({**RNN, **states("hidden_state")}, ("input",)),
            **states("aux_input"),
        },
        70,
        (TIME, ACTIVATION, MERGE, ASYMMETRIC),
        least=12,
    ),
    OperatorKind(
        "BIDIRECTIONAL_SEQUENCE_LSTM",
        {
            **states("input"),
            **both_directions(LSTM, ("input", "cell", "output")),  # TensorFlow's kernel demands equal sizes
            **states("fw_output_state", "fw_cell_state", "bw_output_state", "bw_cell_state", "aux_input"),
        },
        69,
        (ACTIVATION, *CLIPS, MERGE, ("time_major", "?", True), ASYMMETRIC),
        version=2,  # the first with time_major
        least=48,
    ),
)
"""The recurrent operators."""
KINDS = {CODES[kind.name]: kind for kind in RECURRENT}
"""The recurrent operators by their numbers."""
VERSIONS = {code: kind.version for code, kind in KINDS.items()}

# The LSTM of five inputs, whose gates lie side by side.
BASIC = OperatorKind(
    "LSTM",
    {
        **states("input", "prev_activation"),
        "weights": ("gates", "joined"),
        "biases": ("gates",),
        **states("prev_state"),
    },
    14,
    ONE_STEP,
)
