"""The prototype that stepnet's engine grew from, kept as a mark to measure against: one cell, a GRU that
resets after the product, in float32, its machine code generated with llvmlite when this module is imported.

It lacks what makes a product: other cells, ragged batches, widths that 16 does not divide, other instruction
sets, threads that sleep. It splits k for rows that are left over: a sequence's last bits depend on its batch.

    gru = GRU(W, R, bx, bn, threads)    W [inputs, 3H], R [H, 3H], bx [3H], bn [H], gates z r n
    outputs = gru(x)                    x [time, batch, inputs] -> [time, batch, H]
"""

# pyright: basic

import ctypes
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import llvmlite.binding as llvm
import numpy as np
from llvmlite import ir

LANES, ROWS, ROWS_AHEAD = 16, 8, 128
F32, I32, I64 = ir.FloatType(), ir.IntType(32), ir.IntType(64)
FLOATS, INTEGERS = ir.VectorType(F32, LANES), ir.VectorType(I32, LANES)
POINTER = F32.as_pointer()

module = ir.Module("m")


def declared(name, result, arguments):
    """Declares a function of LLVM, by its name and types, in the module; returns it."""
    return ir.Function(module, ir.FunctionType(result, arguments), name)


FMA = declared("llvm.fma.v16f32", FLOATS, [FLOATS] * 3)
RINT = declared("llvm.rint.v16f32", FLOATS, [FLOATS])
MIN = declared("llvm.minnum.v16f32", FLOATS, [FLOATS] * 2)
MAX = declared("llvm.maxnum.v16f32", FLOATS, [FLOATS] * 2)
PAUSE = declared("llvm.x86.sse2.pause", ir.VoidType(), [])


def splat(value):
    """Returns an LLVM vector constant, of one float in all lanes."""
    return ir.Constant(FLOATS, [float(np.float32(value))] * LANES)


def integers(value):
    """Returns an LLVM vector constant, of one 32-bit integer in all lanes."""
    return ir.Constant(INTEGERS, [value] * LANES)


def number(value):
    """Returns an LLVM constant: a 64-bit integer."""
    return ir.Constant(I64, value)


def exponential(b, x):
    """Writes LLVM code for the exponential of a vector: a power of two, times a polynomial."""
    x = b.call(MIN, [b.call(MAX, [x, splat(-87.0)]), splat(87.0)])
    y = b.fmul(x, splat(1.4426950408889634))
    n = b.call(RINT, [y])
    r = b.call(FMA, [n, splat(-0.693145751953125), x])
    r = b.call(FMA, [n, splat(-1.42860682030941723212e-6), r])
    p = splat(1 / 5040.0)
    for k in (1 / 720.0, 1 / 120.0, 1 / 24.0, 1 / 6.0, 0.5, 1.0, 1.0):
        p = b.call(FMA, [p, r, splat(k)])
    power = b.shl(b.add(b.fptosi(n, INTEGERS), integers(127)), integers(23))
    return b.fmul(p, b.bitcast(power, FLOATS))


def sigmoid(b, x):
    """Writes LLVM code for the logistic function of a vector; b: the builder."""
    return b.fdiv(splat(1), b.fadd(splat(1), exponential(b, b.fneg(x))))


def tanh(b, x):
    """Writes LLVM code for the hyperbolic tangent of a vector, by exp(2 x); b: the builder."""
    return b.fsub(splat(1), b.fdiv(splat(2), b.fadd(splat(1), exponential(b, b.fadd(x, x)))))


@contextmanager
def loop(b, low, high, step=1, name="l"):
    """Writes an LLVM loop from low to high; its body is the code written in the block, for an index."""
    before = b.block
    head, body, end = (b.function.append_basic_block(name + suffix) for suffix in ("", "b", "e"))
    b.branch(head)
    b.position_at_end(head)
    index = b.phi(I64)
    index.add_incoming(low, before)
    b.cbranch(b.icmp_signed("<", index, high), body, end)
    b.position_at_end(body)
    yield index
    following = b.add(index, number(step))
    index.add_incoming(following, b.block)
    b.branch(head)
    b.position_at_end(end)


def load(b, pointer, offset, align=4):
    """Writes LLVM code that loads a vector at an offset of a pointer; b: the builder."""
    return b.load(b.bitcast(b.gep(pointer, [offset]), FLOATS.as_pointer()), align=align)


def store(b, value, pointer, offset, align=4):
    """Writes LLVM code that stores a vector at an offset of a pointer; b: the builder."""
    b.store(value, b.bitcast(b.gep(pointer, [offset]), FLOATS.as_pointer()), align=align)


def broadcast(b, pointer, offset):
    """Writes LLVM code that loads one float into all lanes of a vector; b: the builder."""
    undefined = ir.Constant(FLOATS, ir.Undefined)
    value = b.load(b.gep(pointer, [offset]), align=4)
    lanes = b.insert_element(undefined, value, ir.Constant(I32, 0))
    return b.shuffle_vector(lanes, undefined, integers(0))


def product(b, A, stride, row, K, B, rows, gates, split=1):
    """Writes LLVM code for rows row..row + rows of A times B, packed [K][gates][16]: [rows][gates] vectors.

    `split` chains of additions run side by side over k.
    """
    head, end = (b.function.append_basic_block(name) for name in ("k", "ke"))
    offsets = [b.mul(b.add(row, number(r)), stride) for r in range(rows)]
    before = b.block
    b.branch(head)
    b.position_at_end(head)
    k = b.phi(I64)
    k.add_incoming(number(0), before)
    sums = [[[b.phi(FLOATS) for _ in range(gates)] for _ in range(rows)] for _ in range(split)]
    for chain in sums:
        for line in chain:
            for total in line:
                total.add_incoming(splat(0), before)
    added = []
    for u in range(split):
        at = b.add(k, number(u))
        weights = [
            load(b, B, b.add(b.mul(at, number(gates * LANES)), number(g * LANES)), 64) for g in range(gates)
        ]
        chain = []
        for r in range(rows):
            x = broadcast(b, A, b.add(offsets[r], at))
            chain.append([b.call(FMA, [x, weights[g], sums[u][r][g]]) for g in range(gates)])
        added.append(chain)
    following = b.add(k, number(split))
    k.add_incoming(following, b.block)
    for u in range(split):
        for r in range(rows):
            for g in range(gates):
                sums[u][r][g].add_incoming(added[u][r][g], b.block)
    b.cbranch(b.icmp_signed("<", following, K), head, end)
    b.position_at_end(end)
    for r in range(rows):
        for g in range(gates):
            for chain in added[1:]:
                added[0][r][g] = b.fadd(added[0][r][g], chain[r][g])
    return added[0]


def barrier(b, counter, threads, phase):
    """Writes LLVM code that waits, spinning, until every thread has come here `phase` times."""
    b.atomic_rmw("add", counter, number(1), "acq_rel")
    head, end = (b.function.append_basic_block(name) for name in ("sp", "spe"))
    expected = b.mul(threads, phase)
    b.branch(head)
    b.position_at_end(head)
    b.call(PAUSE, [])
    arrived = b.load_atomic(counter, "acquire", 8)
    b.cbranch(b.icmp_signed("<", arrived, expected), head, end)
    b.position_at_end(end)


def smaller(b, first, second):
    """Writes LLVM code for the smaller of two integers; b: the builder."""
    return b.select(b.icmp_signed("<", first, second), first, second)


def generate():
    """Writes the GRU in LLVM: products over inputs of all steps, then the steps; both shared by threads."""
    arguments = [POINTER] * 7 + [I64] * 6 + [I64.as_pointer()]
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), arguments), "gru")
    x, W, bx, xp, R, bn, out, T, N, K, H, thread, threads, counter = function.args
    for pointer in (x, W, bx, xp, R, bn, out):
        pointer.add_attribute("noalias")
    b = ir.IRBuilder(function.append_basic_block("e"))
    H3, M, blocks = b.mul(H, number(3)), b.mul(T, N), b.sdiv(H, number(LANES))

    groups = b.sdiv(b.add(M, number(ROWS - 1)), number(ROWS))
    share = b.sdiv(b.add(groups, b.sub(threads, number(1))), threads)
    low = b.mul(b.mul(share, thread), number(ROWS))
    high = b.add(low, b.mul(share, number(ROWS)))
    high = smaller(b, high, M)

    def keep_products(sums, row, block, rows):
        """Writes code that adds the bias to products over inputs, and stores them."""
        for r in range(rows):
            offset = b.mul(b.add(row, number(r)), H3)
            for g in range(3):
                column = b.add(b.mul(number(g), H), b.mul(block, number(LANES)))
                store(b, b.fadd(sums[r][g], load(b, bx, column)), xp, b.add(offset, column))

    block_size = b.mul(b.mul(K, number(3 * LANES)), number(1))
    with loop(b, low, high, ROWS_AHEAD, "mb") as first:
        last = smaller(b, b.add(first, number(ROWS_AHEAD)), high)
        last_whole = b.sub(last, number(ROWS - 1))
        with loop(b, number(0), blocks, 1, "xj") as block:
            packed = b.gep(W, [b.mul(block, block_size)])
            with loop(b, first, last_whole, ROWS, "xr") as row:
                keep_products(product(b, x, K, row, K, packed, ROWS, 3), row, block, ROWS)
            whole = b.mul(b.sdiv(b.sub(last, first), number(ROWS)), number(ROWS))
            with loop(b, b.add(first, whole), last, 1, "xr1") as row:
                keep_products(product(b, x, K, row, K, packed, 1, 3, 4), row, block, 1)
    barrier(b, counter, threads, number(1))

    share = b.sdiv(b.add(blocks, b.sub(threads, number(1))), threads)
    low = b.mul(share, thread)
    high = smaller(b, b.add(low, share), blocks)
    block_size, NH = b.mul(H, number(3 * LANES)), b.mul(N, H)

    def cell(sums, row, block, rows, xt, old, new):
        """Writes code that computes the gates of some rows of a block, and stores their new h."""
        column = b.mul(block, number(LANES))
        for r in range(rows):
            line = b.add(row, number(r))
            xo = b.mul(line, H3)
            ho = b.add(b.mul(line, H), column)
            z = sigmoid(b, b.fadd(sums[r][0], load(b, xt, b.add(xo, column))))
            reset = sigmoid(b, b.fadd(sums[r][1], load(b, xt, b.add(xo, b.add(H, column)))))
            inner = b.fadd(sums[r][2], load(b, bn, column))
            at = b.add(xo, b.add(b.mul(H, number(2)), column))
            n = tanh(b, b.call(FMA, [reset, inner, load(b, xt, at)]))
            h = load(b, old, ho)
            store(b, b.call(FMA, [z, b.fsub(h, n), n]), new, ho)

    last_whole = b.sub(N, number(ROWS - 1))
    whole = b.mul(b.sdiv(N, number(ROWS)), number(ROWS))
    with loop(b, number(0), T, 1, "t") as t:
        old = b.gep(out, [b.mul(t, NH)])
        new = b.gep(out, [b.mul(b.add(t, number(1)), NH)])
        xt = b.gep(xp, [b.mul(t, b.mul(N, H3))])
        with loop(b, low, high, 1, "j") as block:
            packed = b.gep(R, [b.mul(block, block_size)])
            with loop(b, number(0), last_whole, ROWS, "n") as row:
                cell(product(b, old, H, row, H, packed, ROWS, 3), row, block, ROWS, xt, old, new)
            with loop(b, whole, N, 1, "n1") as row:
                cell(product(b, old, H, row, H, packed, 1, 3, 4), row, block, 1, xt, old, new)
        barrier(b, counter, threads, b.add(t, number(2)))
    b.ret_void()


def compiled():
    """Compiles the LLVM module; returns the engine that holds the code, and the function for ctypes."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    parsed = llvm.parse_assembly(str(module))
    parsed.verify()
    features = llvm.get_host_cpu_features().flatten() + ",-prefer-256-bit"
    machine = llvm.Target.from_default_triple().create_target_machine(
        cpu=llvm.get_host_cpu_name(), features=features, opt=3
    )
    builder = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(speed_level=2))
    builder.getModulePassManager().run(parsed, builder)
    engine = llvm.create_mcjit_compiler(parsed, machine)
    engine.finalize_object()
    pointer, length = ctypes.c_void_p, ctypes.c_int64
    kind = ctypes.CFUNCTYPE(None, *[pointer] * 7, *[length] * 6, pointer)
    return engine, kind(engine.get_function_address("gru"))


generate()
ENGINE, FUNCTION = compiled()


def aligned(shape):
    """Returns an empty float32 array that starts at a cache line, for aligned loads."""
    size = int(np.prod(shape))
    room = np.empty(size + 16, np.float32)
    start = (-room.ctypes.data // 4) % 16
    return room[start : start + size].reshape(shape)


def packed(weights, H):
    """Rearranges weights [K, 3H] as [H / 16][K][3][16], the order in which the code reads them."""
    K = len(weights)
    found = aligned((H // LANES, K, 3, LANES))
    found[:] = weights.reshape(K, 3, H // LANES, LANES).transpose(2, 0, 1, 3)
    return found


class GRU:
    """The prototype's GRU with these weights, on so many threads; keeps memory for its latest size."""

    def __init__(self, W, R, bx, bn, threads):
        """Packs the weights, and starts the threads."""
        self.inputs, self.hidden, self.threads = len(W), len(R), threads
        self.W, self.R, self.bx, self.bn = packed(W, self.hidden), packed(R, self.hidden), bx, bn
        self.pool = ThreadPoolExecutor(max(1, threads - 1))
        self.products = aligned((0, 0, 3 * self.hidden))

    def __call__(self, x):
        """Computes the outputs [time, batch, H] of inputs [time, batch, K], from memories of zeros."""
        T, N, K = x.shape
        if self.products.shape[:2] != (T, N):
            self.products = aligned((T, N, 3 * self.hidden))
        out, counter = aligned((T + 1, N, self.hidden)), np.zeros(8, np.int64)
        out[0] = 0
        arrays = (x, self.W, self.bx, self.products, self.R, self.bn, out)
        pointers = [array.ctypes.data for array in arrays]

        def run(thread):
            """Runs one thread's share of the compiled function."""
            FUNCTION(*pointers, T, N, K, self.hidden, thread, self.threads, counter.ctypes.data)

        others = [self.pool.submit(run, thread) for thread in range(1, self.threads)]
        run(0)
        for other in others:
            other.result()
        return out[1:]
