#ifndef RNN_DATA_H
#define RNN_DATA_H
#include "rnn.h"
struct RNNModel {
    int unused;
};
struct RNNState {
    const struct RNNModel *model;
    float *vad_gru_state, *noise_gru_state, *denoise_gru_state;
};
#endif
