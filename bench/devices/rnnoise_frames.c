/* Runs a network on COUNT frames of the table in frames.h: RNNoise's own code, or a built model with the name `net`.
 * With WRITTEN it writes the outputs of each frame.
 */
#ifdef WRITTEN
#include <stdio.h>
#endif

#ifdef THEIRS
#include "rnn.h"
#include "rnn_data.h"

typedef float input, output;
extern const struct RNNModel rnnoise_model_orig;
static float voice_state[24], noise_state[48], denoise_state[96];
static RNNState state = {&rnnoise_model_orig, voice_state, noise_state, denoise_state};
#define BEGIN 0
#define FRAME(x, gains, voice) (compute_rnn(&state, gains, voice, x), 0)
#else
#include "net.h"

static net_context context;
#define BEGIN net_reset(&context)
#define FRAME(x, gains, voice) net_step(&context, x, gains, voice)
#endif

#include "frames.h"

int main(void)
{
    static output gains[22], voice[1];
    if (BEGIN) return 1;
    for (unsigned at = 0; at < COUNT; at++) {
        if (FRAME(frames[at], gains, voice)) return 2;
#ifdef WRITTEN
        fwrite(gains, sizeof gains, 1, stdout);
        fwrite(voice, sizeof voice, 1, stdout);
#endif
    }
    return 0;
}
