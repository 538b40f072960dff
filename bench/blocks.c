/* A gated delta rule of one head in blocks of C steps as matrix products, and step by step, written by hand.

   -DK=.. keys and values of a head   -DC=.. steps of a block   -DW=.. vectors side by side
   -DDELTA=0 for linear attention with a decay: d = v

   In a block, d[t] solves a triangular system; L[t][s] is the product of the decays behind s up to t:

       u[t] = L[t] k[t] S + sum(s < t) L[t][s] (k[t] k[s]) d[s]      d[t] = b[t] (v[t] - u[t])
       o[t] = L[t] q[t] S + sum(s <= t) L[t][s] (q[t] k[s]) d[s]     S = L S + sum(s) L[s] k[s] d[s]

   S. Yang, B. Wang, Y. Zhang, Y. Shen, Y. Kim (2024), Parallelizing Linear Transformers with the Delta Rule
   over Sequence Length, arXiv:2406.06484. */

#include <math.h>

#define LANES 16
#define STRIP (LANES * W)
#define INLINE static inline __attribute__((always_inline))

typedef float vec __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

INLINE vec load(const float *at) { return *(const vec *)at; }
INLINE void store(float *at, vec value) { *(vec *)at = value; }

/* sums[r][w] += left[r * row + k * column] * right[k * stride + w * LANES], for all k. */
INLINE void tile(int rows, vec sums[][W], const float *left, long row, long column, const float *right, long stride, int depth) {
    for (int k = 0; k < depth; k++)
        for (int r = 0; r < rows; r++)
            for (int w = 0; w < W; w++)
                sums[r][w] += left[r * row + k * column] * load(right + k * stride + w * LANES);
}

/* Strip by strip of the values: S lies as [strip][K][STRIP], so that a strip stays in the nearest cache. */
void steps(int count, const float *q, const float *k, const float *v, const float *g, const float *b, float *S, float *o) {
    for (int first = 0; first < K; first += STRIP) {
        float *own = S + (long)first * K;
        for (int t = 0; t < count; t++) {
            float decay = expf(g[t]);
            vec u[W] = {}, d[W], y[W] = {};
            for (int i = 0; DELTA && i < K; i++)
                for (int w = 0; w < W; w++) u[w] += k[t * K + i] * load(own + i * STRIP + w * LANES);
            for (int w = 0; w < W; w++) d[w] = load(v + t * K + first + w * LANES);
            for (int w = 0; DELTA && w < W; w++) d[w] = b[t] * (d[w] - decay * u[w]);
            for (int i = 0; i < K; i++)
                for (int w = 0; w < W; w++) {
                    vec z = decay * load(own + i * STRIP + w * LANES) + k[t * K + i] * d[w];
                    store(own + i * STRIP + w * LANES, z);
                    y[w] += q[t * K + i] * z;
                }
            for (int w = 0; w < W; w++) store(o + t * K + first + w * LANES, y[w]);
        }
    }
}

enum { COLUMNS = (C + LANES - 1) / LANES * LANES };
static float scaled[2 * C * K], later[C * K], keys[K * COLUMNS], inner[2 * C * COLUMNS], sums[2 * C * STRIP], d[C * STRIP];

/* What needs no memory: scaled = L[t] k[t], L[t] q[t]; later = L[s] k[s]; inner = L[t][s] (k[t] k[s]), of q too. */
static void before(const float *q, const float *k, const float *g, float *whole) {
    float decay[C], product = 1;
    for (int t = 0; t < C; t++) decay[t] = expf(g[t]);
    for (int t = C - 1; t >= 0; t--) {
        for (int i = 0; i < K; i++) later[t * K + i] = product * k[t * K + i];
        product *= decay[t];
    }
    *whole = product, product = 1;
    for (int t = 0; t < C; t++) {
        product *= decay[t];
        for (int i = 0; i < K; i++) {
            scaled[t * K + i] = product * k[t * K + i];
            scaled[(C + t) * K + i] = product * q[t * K + i];
            keys[i * COLUMNS + t] = k[t * K + i];
        }
    }
    for (int side = !DELTA; side < 2; side++)
        for (int t = 0; t < C; t++)
            for (int column = 0; column < COLUMNS; column += LANES) {
                vec sum = {};
                for (int i = 0; i < K; i++) sum += (side ? q : k)[t * K + i] * load(keys + i * COLUMNS + column);
                store(inner + (side * C + t) * COLUMNS + column, sum);
            }
    for (int t = 0; t < C; t++) {
        float product = 1;
        for (int s = t; s >= 0; product *= decay[s--])
            for (int side = !DELTA; side < 2; side++) inner[(side * C + t) * COLUMNS + s] *= product;
    }
}

void blocks(int count, const float *q, const float *k, const float *v, const float *g, const float *b, float *S, float *o) {
    for (int t0 = 0; t0 < count; t0 += C, q += C * K, k += C * K, v += C * K, o += C * K) {
        float whole;
        before(q, k, g + t0, &whole);
        for (int first = 0; first < K; first += STRIP) {
            float *own = S + (long)first * K;
            for (int t = DELTA ? 0 : C; t < 2 * C; t += 4) {
                vec sum[4][W] = {};
                tile(4, sum, scaled + t * K, K, 1, own, STRIP, K);
                for (int r = 0; r < 4; r++)
                    for (int w = 0; w < W; w++) store(sums + (t + r) * STRIP + w * LANES, sum[r][w]);
            }
            for (int t = 0; t < C; t++)
                for (int w = 0; w < W; w++) {
                    vec u = load(sums + t * STRIP + w * LANES);
                    for (int s = 0; DELTA && s < t; s++) u += inner[t * COLUMNS + s] * load(d + s * STRIP + w * LANES);
                    vec written = load(v + t * K + first + w * LANES);
                    if (DELTA) written = b[t0 + t] * (written - u);
                    store(d + t * STRIP + w * LANES, written);
                }
            for (int t = 0; t < C; t++) {
                vec sum[1][W];
                for (int w = 0; w < W; w++) sum[0][w] = load(sums + (C + t) * STRIP + w * LANES);
                tile(1, sum, inner + (C + t) * COLUMNS, COLUMNS, 1, d, STRIP, t + 1);
                for (int w = 0; w < W; w++) store(o + t * K + first + w * LANES, sum[0][w]);
            }
            for (int i = 0; i < K; i += 4) {
                vec sum[4][W];
                for (int r = 0; r < 4; r++)
                    for (int w = 0; w < W; w++) sum[r][w] = whole * load(own + (i + r) * STRIP + w * LANES);
                tile(4, sum, later + i, 1, K, d, STRIP, C);
                for (int r = 0; r < 4; r++)
                    for (int w = 0; w < W; w++) store(own + (i + r) * STRIP + w * LANES, sum[r][w]);
            }
        }
    }
}
