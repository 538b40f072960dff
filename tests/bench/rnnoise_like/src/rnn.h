#ifndef RNN_H
#define RNN_H
typedef signed char rnn_weight;
typedef struct RNNState RNNState;
void compute_rnn(RNNState *rnn, float *gains, float *vad, const float *input);
#endif
