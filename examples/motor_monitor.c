/* A monitor of a motor, as it would run on its microcontroller: one frame of three sensors in, one number out.

   Here the frames come from a file, as float32 without a header; on a board, from its converters:

       .venv/bin/python examples/motor_monitor.py build/monitor
       cc -std=c99 -O2 examples/motor_monitor.c build/monitor/monitor.c -Ibuild/monitor -o build/monitor/run
       build/monitor/run < build/monitor/held_out.f32
*/

#include <stdio.h>

#include "monitor.h"

static monitor_context context; /* all that the monitor keeps: MONITOR_RAM_BYTES */

int main(void)
{
    float sensors[MONITOR_X_SIZE];
    float alarm[MONITOR_Y_SIZE];
    if (monitor_reset(&context) != MONITOR_OK) return 1;
    while (fread(sensors, sizeof sensors, 1, stdin) == 1) {
        if (monitor_step(&context, sensors, alarm) != MONITOR_OK) return 1;
        printf("%.9g%s\n", (double)alarm[0], alarm[0] > 1.0f ? " alarm" : "");
    }
    return 0;
}
