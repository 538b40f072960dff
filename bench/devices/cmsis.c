/* Runs STEPS steps of an LSTM of CMSIS-NN in one call, and prints the last outputs; WITHOUT leaves it out. */
#include "arm_nnfunctions.h"
#include "board.h"
#include "frames.h"

static const volatile unsigned steps = STEPS; /* so that the code is the same for each number */
static TAKEN given[STEPS * UNITS];
#ifndef WITHOUT
static int16_t first[UNITS], second[UNITS], cell[UNITS];
static TAKEN hidden[UNITS];

#define GATE(name, function) \
    { \
        .input_multiplier = name##_input_multiplier, .input_shift = name##_input_shift, \
        .input_weights = name##_input, .input_effective_bias = name##_input_bias, \
        .hidden_multiplier = name##_hidden_multiplier, .hidden_shift = name##_hidden_shift, \
        .hidden_weights = name##_hidden, .hidden_effective_bias = name##_hidden_bias, \
        .activation_type = function \
    }

static const cmsis_nn_lstm_params params = {
    .time_major = 1,
    .batch_size = 1,
    .time_steps = STEPS,
    .input_size = INPUTS,
    .hidden_size = UNITS,
    .forget_to_cell_multiplier = forget_to_cell_multiplier,
    .forget_to_cell_shift = forget_to_cell_shift,
    .input_to_cell_multiplier = input_to_cell_multiplier,
    .input_to_cell_shift = input_to_cell_shift,
    .cell_clip = 32767,
    .cell_scale_power = CELL_POWER,
    .output_multiplier = output_multiplier,
    .output_shift = output_shift,
    .forget_gate = GATE(f, ARM_SIGMOID),
    .input_gate = GATE(i, ARM_SIGMOID),
    .cell_gate = GATE(g, ARM_TANH),
    .output_gate = GATE(o, ARM_SIGMOID),
};
#endif

int main(void)
{
    int status = 0;
    keep(frames);
    keep(given);
#ifndef WITHOUT
    cmsis_nn_lstm_context buffers = {.temp1 = first, .temp2 = second, .cell_state = cell, .hidden_state = hidden};
    status = LSTM(frames[0], given, &params, &buffers);
#endif
    say("stack", used_stack());
    for (unsigned at = 0; at < UNITS; at++)
        say("y", (unsigned)given[(steps - 1) * UNITS + at]);
    return status;
}
