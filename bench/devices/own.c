/* Runs STEPS frames of a build named m in one call, and prints the last outputs; WITHOUT leaves the model out, for
 * what the rest takes.
 */
#include "m.h"
#include "board.h"
#include "frames.h"

static const volatile unsigned steps = STEPS; /* so that the code is the same for each number */
static TAKEN given[STEPS * M_Y_SIZE];
#ifndef WITHOUT
static m_context context;
#endif

int main(void)
{
    int status = 0;
    keep(frames);
    keep(given);
#ifndef WITHOUT
    status = m_reset(&context) | m_block(&context, steps, frames[0], given);
#endif
    say("stack", used_stack());
    for (unsigned at = 0; at < M_Y_SIZE; at++)
        say("y", (unsigned)given[(steps - 1) * M_Y_SIZE + at]);
    return status;
}
