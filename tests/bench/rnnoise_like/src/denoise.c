/* Features are parts of the sound: sums of its samples. */
#include <stdlib.h>

#include "rnnoise.h"
#include "rnn_data.h"

extern const struct RNNModel rnnoise_model_orig;
struct DenoiseState {
    float vad[24], noise[48], denoise[96];
};

DenoiseState *rnnoise_create(RNNModel *model)
{
    (void)model;
    return calloc(1, sizeof(DenoiseState));
}

void rnnoise_destroy(DenoiseState *state)
{
    free(state);
}

float rnnoise_process_frame(DenoiseState *state, float *out, const float *in)
{
    float features[42], gains[22], vad;
    RNNState network = {&rnnoise_model_orig, state->vad, state->noise, state->denoise};
    for (int i = 0; i < 42; i++) {
        features[i] = 0;
        for (int j = 0; j < 11; j++) features[i] += in[11 * i + j] / 10000;
    }
    compute_rnn(&network, gains, &vad, features);
    out[0] = in[0];
    return vad;
}
