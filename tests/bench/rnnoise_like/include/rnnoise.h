/* A library with the interface of RNNoise 0.1.1, written for tests: its network is plain loops. */
#ifndef RNNOISE_H
#define RNNOISE_H
typedef struct DenoiseState DenoiseState;
typedef struct RNNModel RNNModel;
DenoiseState *rnnoise_create(RNNModel *model);
void rnnoise_destroy(DenoiseState *state);
float rnnoise_process_frame(DenoiseState *state, float *out, const float *in);
#endif
