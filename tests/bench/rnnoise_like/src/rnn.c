/* The network of the paper, one unit after the other, in double. */
#include <math.h>
#include <string.h>

#include "rnn_data.h"

#define LAYER(name) extern const rnn_weight name##_weights[], name##_bias[];
#define GRU(name) LAYER(name) extern const rnn_weight name##_recurrent_weights[];
LAYER(input_dense) LAYER(vad_output) LAYER(denoise_output) GRU(vad_gru) GRU(noise_gru) GRU(denoise_gru)
const struct RNNModel rnnoise_model_orig = {0};

static double sum(const rnn_weight *weights, const float *x, const double *factors, int inputs, int outputs, int unit)
{
    double total = 0;
    for (int i = 0; i < inputs; i++) total += weights[i * outputs + unit] / 256.0 * x[i] * (factors ? factors[i] : 1);
    return total;
}

static double sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}

static void gru(const rnn_weight *w, const rnn_weight *r, const rnn_weight *b, float *h, const float *x, int m, int n)
{
    double kept[96], reset[96], made[96];
    for (int i = 0; i < n; i++) {
        kept[i] = sigmoid(b[i] / 256.0 + sum(w, x, 0, m, 3 * n, i) + sum(r, h, 0, n, 3 * n, i));
        reset[i] = sigmoid(b[n + i] / 256.0 + sum(w, x, 0, m, 3 * n, n + i) + sum(r, h, 0, n, 3 * n, n + i));
    }
    for (int i = 0; i < n; i++) {
        int unit = 2 * n + i;
        made[i] = fmax(0, b[unit] / 256.0 + sum(w, x, 0, m, 3 * n, unit) + sum(r, h, reset, n, 3 * n, unit));
    }
    for (int i = 0; i < n; i++) h[i] = (float)(kept[i] * h[i] + (1 - kept[i]) * made[i]);
}

void compute_rnn(RNNState *rnn, float *gains, float *vad, const float *input)
{
    float first[24], x[114];
    float *v = rnn->vad_gru_state, *n = rnn->noise_gru_state, *d = rnn->denoise_gru_state;
    for (int i = 0; i < 24; i++) {
        first[i] = (float)tanh(input_dense_bias[i] / 256.0 + sum(input_dense_weights, input, 0, 42, 24, i));
    }
    gru(vad_gru_weights, vad_gru_recurrent_weights, vad_gru_bias, v, first, 24, 24);
    vad[0] = (float)sigmoid(vad_output_bias[0] / 256.0 + sum(vad_output_weights, v, 0, 24, 1, 0));
    memcpy(x, first, sizeof first);
    memcpy(x + 24, v, 24 * sizeof(float));
    memcpy(x + 48, input, 42 * sizeof(float));
    gru(noise_gru_weights, noise_gru_recurrent_weights, noise_gru_bias, n, x, 90, 48);
    memcpy(x, v, 24 * sizeof(float));
    memcpy(x + 24, n, 48 * sizeof(float));
    memcpy(x + 72, input, 42 * sizeof(float));
    gru(denoise_gru_weights, denoise_gru_recurrent_weights, denoise_gru_bias, d, x, 114, 96);
    for (int i = 0; i < 22; i++) {
        gains[i] = (float)sigmoid(denoise_output_bias[i] / 256.0 + sum(denoise_output_weights, d, 0, 96, 22, i));
    }
}
