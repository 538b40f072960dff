/* Noise suppression, as it would run on its microcontroller: 64 samples of 8 kHz in, 64 out.

   Here the samples come from a file, as float32 without a header, and go to another; on a board, from a microphone:

       .venv/bin/python examples/noise_suppression.py build/noise
       cc -std=c99 -O2 examples/noise_suppression.c build/noise/suppressor.c -Ibuild/noise -lm -o build/noise/run
       build/noise/run build/noise/frames build/noise/outputs
*/

#include <stdio.h>

#include "suppressor.h"

static suppressor_context context; /* all that the suppressor keeps: SUPPRESSOR_RAM_BYTES */

int main(int count, char **names)
{
    float noisy[SUPPRESSOR_X_SIZE];
    float quiet[SUPPRESSOR_Y_SIZE];
    if (count != 3 || !freopen(names[1], "rb", stdin) || !freopen(names[2], "wb", stdout)) return 2;
    if (suppressor_reset(&context) != SUPPRESSOR_OK) return 1;
    while (fread(noisy, sizeof noisy, 1, stdin) == 1) {
        if (suppressor_step(&context, noisy, quiet) != SUPPRESSOR_OK) return 1;
        if (fwrite(quiet, sizeof quiet, 1, stdout) != 1) return 1;
    }
    return 0;
}
