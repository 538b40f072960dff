/* Runs the model of model.h on the frames of frames.h by the interpreter of TensorFlow Lite for microcontrollers,
 * and prints the last outputs; WITHOUT leaves all of it out.
 */
#include "tensorflow/lite/micro/micro_interpreter.h"
#include "tensorflow/lite/micro/micro_mutable_op_resolver.h"
#include "tensorflow/lite/schema/schema_generated.h"

extern "C" {
#include "board.h"
#include "frames.h"
#include "model.h"
}

static const volatile unsigned steps = STEPS; /* so that the code is the same for each number */
alignas(16) static uint8_t arena[65536];

extern "C" int main()
{
    keep(frames);
    keep(arena);
#ifndef WITHOUT
    tflite::MicroMutableOpResolver<1> resolver;
    resolver.AddUnidirectionalSequenceLSTM(tflite::Register_UNIDIRECTIONAL_SEQUENCE_LSTM_INT8());
    tflite::MicroInterpreter interpreter(tflite::GetModel(model), resolver, arena, sizeof arena);
    if (interpreter.AllocateTensors() != kTfLiteOk)
        return 1;
    memcpy(interpreter.input(0)->data.int8, frames, steps * INPUTS);
    if (interpreter.Invoke() != kTfLiteOk)
        return 2;
    say("arena", interpreter.arena_used_bytes());
    const int8_t *given = interpreter.output(0)->data.int8 + (steps - 1) * UNITS;
#else
    const int8_t *given = frames[0];
#endif
    say("stack", used_stack());
    for (unsigned at = 0; at < UNITS; at++)
        say("y", static_cast<unsigned>(given[at]));
    return 0;
}
