/* A recurrent network in C: whole sequences in one call, and the same sequence in pieces as it arrives.

   The library is built of the recurrent layer in a file of weights; no Python runs here, and the build needs
   no compiler:

       stepnet build src/stepnet/cli/data/speaker_gru.safetensors -o build/speaker --recurrent-only
       cc examples/speaker_stream.c -Ibuild/speaker build/speaker/libspeaker_gru.a -o build/speaker/stream
       build/speaker/stream
*/

#include <stdio.h>
#include <string.h>

#include "speaker_gru.h"

enum { STEPS = 20, PIECE = 6, INPUTS = SPEAKER_GRU_X_SIZE, HIDDEN = SPEAKER_GRU_Y_SIZE };

static int failed(int code)
{
    if (code != SPEAKER_GRU_OK) fprintf(stderr, "%s\n", speaker_gru_error(code));
    return code != SPEAKER_GRU_OK;
}

int main(void)
{
    static float x[STEPS * INPUTS], whole[STEPS * HIDDEN], pieces[STEPS * HIDDEN];
    for (int i = 0; i < STEPS * INPUTS; i++) x[i] = (float)(i % 17) / 8.0f - 1.0f;

    speaker_gru_context *context;
    if (failed(speaker_gru_new(&context))) return 1;

    /* Two sequences of different lengths in one call: steps 0 to 12, and 13 to 19. */
    int64_t offsets[] = {0, 13, STEPS};
    float last[2 * HIDDEN];
    int code = speaker_gru_run(context, 2, offsets, x, NULL, whole, last);

    /* The first one again, a few steps at a time: each piece begins with the memory that the last one left. */
    float memory[2][HIDDEN] = {{0}};
    int turn = 0;
    for (int64_t first = 0; code == 0 && first < 13; first += PIECE, turn ^= 1) {
        int64_t piece[] = {0, first + PIECE < 13 ? PIECE : 13 - first};
        code = speaker_gru_run(context, 1, piece, x + first * INPUTS, memory[turn], pieces + first * HIDDEN,
                               memory[turn ^ 1]);
    }
    speaker_gru_free(context);
    if (failed(code)) return 1;

    int same = !memcmp(pieces, whole, 13 * HIDDEN * sizeof *whole) && !memcmp(memory[turn], last, sizeof memory[0]);
    printf("steps %d, outputs per step %d\n", STEPS, HIDDEN);
    printf("the same in pieces: %s\n", same ? "yes" : "no");
    for (int i = 0; i < 4; i++) printf("%.9g\n", last[HIDDEN + i]);
    return same ? 0 : 1;
}
