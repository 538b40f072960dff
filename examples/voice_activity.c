/* Voice activity, as it would run on its microcontroller: one frame of 16 integers in, one decision out, no floats.

   Here the frames come from a file of int8 without a header; on a board, from the energies of a microphone's sound:

       .venv/bin/python examples/voice_activity.py build/voice
       cc -std=c99 -O2 examples/voice_activity.c build/voice/voice.c -Ibuild/voice -o build/voice/run
       build/voice/run < build/voice/held_out.frames
*/

#include <stdio.h>

#include "voice.h"

static const int16_t half = (int16_t)(0.5 / VOICE_Y_SCALE); /* the integer that means 0.5 */
static voice_context context; /* all that the detector keeps: VOICE_RAM_BYTES */

int main(void)
{
    int8_t energies[VOICE_X_SIZE];
    int16_t sure[VOICE_Y_SIZE];
    if (voice_reset(&context) != VOICE_OK) return 1;
    while (fread(energies, sizeof energies, 1, stdin) == 1) {
        if (voice_step(&context, energies, sure) != VOICE_OK) return 1;
        printf("%d%s\n", sure[0], sure[0] > half ? " voice" : "");
    }
    return 0;
}
