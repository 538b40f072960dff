/* Voice activity, as it would run on its microcontroller: one frame of 16 integers in, one out, no floats.

   Here the frames come from a file of int8 without a header; on a board, from the energies of a microphone's sound:

       .venv/bin/python examples/voice_activity.py build/voice
       cc -std=c99 -O2 examples/voice_activity.c build/voice/voice.c -Ibuild/voice -o build/voice/run
       build/voice/run build/voice/frames build/voice/outputs
*/

#include <stdio.h>

#include "voice.h"

static const int16_t half = (int16_t)(0.5 / VOICE_Y_SCALE); /* the integer that means 0.5 */
static voice_context context; /* all that the detector keeps: VOICE_RAM_BYTES */

int main(int count, char **names)
{
    int8_t energies[VOICE_X_SIZE];
    int16_t sure[VOICE_Y_SIZE] = {0};
    if (count != 3 || !freopen(names[1], "rb", stdin) || !freopen(names[2], "wb", stdout)) return 2;
    if (voice_reset(&context) != VOICE_OK) return 1;
    for (int frame = 0; fread(energies, sizeof energies, 1, stdin) == 1; frame++) {
        const int16_t before = sure[0];
        if (voice_step(&context, energies, sure) != VOICE_OK) return 1;
        if (sure[0] > half && before <= half) fprintf(stderr, "voice from frame %d\n", frame);
        if (fwrite(sure, sizeof sure, 1, stdout) != 1) return 1;
    }
    return 0;
}
