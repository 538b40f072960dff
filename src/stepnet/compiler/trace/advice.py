"""Advice for NumPy's functions and methods that steps do not have: expressions to write instead."""

from collections.abc import Mapping

SORT = "write np.sort(x, axis=-1), and take features of that"
NO_SHAPE = "the number of elements depends on values, and a step has as many in every row; use np.where"
NO_NUMBERS = "a value has no numbers while it is traced: give it as an output, and read the outputs of a call"
NO_CHANGE = "a value never changes in place; use np.where or np.concatenate to make a new one"
REAL = "the values of a step are real numbers: write x itself"
NOT_NAN = "write np.where(np.isnan(x), 0, x), and the function without nan of that"
BITS = "write it with &, |, ^, ~, << and >> of integers, which steps have"

GROUPS: Mapping[str, str] = {
    # sorted, counted, chosen by values
    SORT: """np.partition np.sort_complex np.median np.quantile np.percentile np.nanmedian np.nanquantile
        np.nanpercentile .partition""",
    "write np.argsort(x, axis=-1), and take features of that": "np.argpartition np.lexsort",
    "write np.sum(x < numbers[:, None], axis=-1)": "np.searchsorted",
    "a value never changes in place; write x = np.sort(x, axis=-1)": ".sort",
    NO_SHAPE: """np.nonzero np.flatnonzero np.argwhere np.extract np.compress np.unique np.unique_all
        np.unique_counts np.unique_inverse np.unique_values np.trim_zeros np.union1d np.setdiff1d np.setxor1d
        np.intersect1d""",
    "write np.sum(x[:, :, None] >= bounds, axis=-1)": "np.digitize",
    "stepnet has no histograms: np.sum of comparisons counts": """np.histogram np.histogram2d np.histogramdd
        np.histogram_bin_edges np.bincount""",
    "write (x[:, :, None] == numbers).any(axis=-1)": "np.isin",
    "write np.all(a == b, axis=-1)": "np.array_equal np.array_equiv",
    "write np.abs(a - b) <= atol + rtol * np.abs(b)": "np.isclose np.allclose",
    "write np.where, one inside the other": "np.piecewise np.choose",
    "write np.clip and np.where for each piece": "np.interp",
    "write np.isinf(x) & (x > 0)": "np.isposinf",
    "write np.isinf(x) & (x < 0)": "np.isneginf",
    "write np.take with a list of integers, or a one-hot vector and a sum": "np.take_along_axis",
    NOT_NAN: """np.nansum np.nanprod np.nanmean np.nanvar np.nanstd np.nanmax np.nanmin np.nanargmax
        np.nanargmin np.nancumsum np.nancumprod""",
    # arithmetic
    "write np.max(x, axis=-1) - np.min(x, axis=-1)": "np.ptp",
    "write np.sum(x * weights, axis=-1) / np.sum(weights)": "np.average",
    "write np.sum((y[:, 1:] + y[:, :-1]) / 2, axis=-1) * dx": "np.trapezoid np.trapz",
    "write x[:, 1:] - x[:, :-1]": "np.gradient np.ediff1d",
    "write np.where(x == 0, 1, np.sin(np.pi * x) / (np.pi * x))": "np.sinc",
    "write np.trunc(x)": "np.fix",
    "stepnet has no Bessel functions": "np.i0",
    "places of features are constants: compute them of arange(x.shape[-1])": """np.diag_indices_from
        np.tril_indices_from np.triu_indices_from np.unravel_index np.ravel_multi_index""",
    "write np.trunc(x) and x - np.trunc(x)": "np.modf",
    "write x.astype(np.float64) ** y": "np.float_power",
    "write x * 2.0 ** n": "np.ldexp",
    "write np.floor(np.log2(np.abs(x))) for the exponent": "np.frexp",
    "write the polynomial out: (a * x + b) * x + c": """np.polyval np.poly np.roots np.polyadd np.polysub
        np.polymul np.polydiv np.polyder np.polyint np.polyfit np.vander""",
    "write np.cumsum(x, axis=-1)": "np.cumulative_sum",
    "write np.cumprod(x, axis=-1)": "np.cumulative_prod",
    "write np.remainder with 2 * np.pi, and np.cumsum": "np.unwrap",
    REAL: """np.real np.imag np.conj np.conjugate np.angle np.real_if_close np.iscomplex np.isreal
        np.iscomplexobj np.isrealobj .real .imag .conj .conjugate""",
    BITS: """np.bitwise_count np.packbits np.unpackbits np.gcd np.lcm""",
    "floats next to each other are nothing that a step tells apart": "np.nextafter np.spacing",
    "a step has no dates": "np.isnat np.datetime_as_string np.busday_count np.busday_offset np.is_busday",
    # products
    "write x[:, :, None] * y[:, None, :]": "np.outer np.kron np.linalg.outer",
    "write np.sum(x * y, axis=-1)": "np.inner np.vdot np.vecdot np.linalg.vecdot",
    "write np.einsum": "np.matvec np.vecmat np.einsum_path np.linalg.matmul np.linalg.multi_dot",
    "write np.tensordot": "np.linalg.tensordot",
    "write a[:, [1, 2, 0]] * b[:, [2, 0, 1]] - a[:, [2, 0, 1]] * b[:, [1, 2, 0]]": "np.cross np.linalg.cross",
    "write x @ W with the kernel shifted in the columns of W, or sum products of slices": """np.convolve
        np.correlate""",
    "every row is a sequence of its own: subtract x.mean(axis=-1), and multiply": "np.cov np.corrcoef",
    "write np.linalg.norm(x, axis=-1)": "np.linalg.vector_norm np.linalg.matrix_norm",
    # shapes
    "write x.reshape(x.shape[0], -1), which keeps the rows": ".flatten np.resize .resize",
    "write np.concatenate(arrays, axis=1)": "np.column_stack np.block np.delete np.insert",
    "it would join or move the rows: write np.concatenate or np.stack with axis=-1": """np.vstack np.row_stack
        np.dstack""",
    "write np.split with axis=-1": "np.hsplit np.vsplit np.dsplit np.unstack",
    "write np.moveaxis": "np.rollaxis",
    "write x[:, ::-1] and np.swapaxes: the rows stay where they are": "np.rot90 np.flipud",
    "write x[:, None] for another axis": "np.atleast_1d np.atleast_2d np.atleast_3d",
    "write np.broadcast_to, or let shapes broadcast": """np.broadcast_arrays np.meshgrid np.ix_ np.indices""",
    "write np.einsum('bii->bi', x)": "np.diagonal np.diag np.diagflat np.linalg.diagonal",
    "write np.einsum('bii->b', x)": "np.trace np.linalg.trace",
    "write np.where(np.tri(n, dtype=bool), x, 0)": "np.tril np.triu",
    "write np.swapaxes(x, -1, -2)": "np.linalg.matrix_transpose .mT",
    "write x.shape[-1], which is a number; that of the rows is not known": "np.size .size .nbytes",
    "write np.zeros_like(x)": "np.empty_like",
    "write x.astype(dtype)": "np.astype .view",
    "write x.dtype": "np.can_cast np.common_type np.min_scalar_type .itemsize",
    "write np.arange(n) * (b - a) / (n - 1) + a": "np.linspace np.geomspace np.logspace",
    # what needs numbers
    NO_NUMBERS: """np.save np.savez np.savez_compressed np.savetxt np.array2string np.array_repr np.array_str
        np.shares_memory np.may_share_memory np.require .item .tolist .tobytes .dump .dumps .tofile .data
        .flat .base .flags .strides .ctypes .byteswap""",
    NO_CHANGE: """np.copyto np.put np.place np.putmask np.fill_diagonal np.put_along_axis .fill .put .itemset
        .setfield .setflags""",
    "write the function itself, of whole arrays": "np.apply_along_axis np.apply_over_axes np.vectorize",
    # beginnings of names
    "stepnet has no linear algebra of a step's values; compute what depends on parameters alone ahead, and "
    "give it as a parameter": "np.linalg.",
    "a Fourier transform of features is a product with a matrix of np.cos and np.sin": "np.fft.",
}
"""Expressions to write, with the functions (np.median) and methods (.item) that each replaces. A name that
ends in a dot stands for all that begin with it."""

INSTEAD = {name: text for text, names in GROUPS.items() for name in names.split()}
NOTHING = "stepnet has no such operation; docs/steps.md lists those that a step may use"

METHODS = {
    "np.add.reduce": "np.sum",
    "np.multiply.reduce": "np.prod",
    "np.maximum.reduce": "np.max",
    "np.minimum.reduce": "np.min",
    "np.logical_and.reduce": "np.all",
    "np.logical_or.reduce": "np.any",
    "np.add.accumulate": "np.cumsum",
    "np.multiply.accumulate": "np.cumprod",
    "np.multiply.outer": "x[:, :, None] * y[:, None, :]",
}
"""Functions to write in place of methods of ufuncs."""


def message_for(name: str) -> str:
    """Returns the message for a function or method that steps do not have, with the code to write instead.

    name: as it is written, such as "np.median", ".sort" for a method of arrays, or "np.add.reduce".

    >>> message_for("np.median")
    'np.median is not an operation of a step: write np.sort(x, axis=-1), and take features of that'
    """
    title = f"array method {name}" if name.startswith(".") else name
    beginning = f"{name.rpartition('.')[0]}."
    if name in METHODS:
        advice = f"write {METHODS[name]}"
    else:
        advice = INSTEAD.get(name) or INSTEAD.get(f"np{name}") or INSTEAD.get(beginning) or NOTHING
    return f"{title} is not an operation of a step: {advice}"
