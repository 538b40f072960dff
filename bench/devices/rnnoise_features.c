/* Runs RNNoise's library on sound, as float32 of 48 kHz from a file, and writes what its network takes and gives in
 * each frame: 42 features, 22 gains, and the probability of voice. Linked with -Wl,--wrap=compute_rnn.
 */
#include <stdio.h>

#include "rnnoise.h"
#include "rnn.h"

enum { SAMPLES = 480, FEATURES = 42, GAINS = 22 };

void __real_compute_rnn(RNNState *, float *, float *, const float *);

void __wrap_compute_rnn(RNNState *state, float *gains, float *voice, const float *features)
{
    fwrite(features, sizeof *features, FEATURES, stdout);
    __real_compute_rnn(state, gains, voice, features);
    fwrite(gains, sizeof *gains, GAINS, stdout);
    fwrite(voice, sizeof *voice, 1, stdout);
}

int main(void)
{
    static float sound[SAMPLES];
    DenoiseState *state = rnnoise_create(NULL);
    if (state == NULL) return 1;
    while (fread(sound, sizeof sound, 1, stdin) == 1) rnnoise_process_frame(state, sound, sound);
    rnnoise_destroy(state);
    return 0;
}
