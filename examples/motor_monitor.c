/* A monitor of a motor, as it would run on its microcontroller: one frame of three sensors in, one number out.

   Here the frames come from a file, as float32 without a header, and go to another; on a board, from its converters:

       .venv/bin/python examples/motor_monitor.py build/monitor
       cc -std=c99 -O2 examples/motor_monitor.c build/monitor/monitor.c -Ibuild/monitor -o build/monitor/run
       build/monitor/run build/monitor/frames build/monitor/outputs
*/

#include <stdio.h>

#include "monitor.h"

static monitor_context context; /* all that the monitor keeps: MONITOR_RAM_BYTES */

int main(int count, char **names)
{
    float sensors[MONITOR_X_SIZE];
    float alarm[MONITOR_Y_SIZE] = {0.0f};
    if (count != 3 || !freopen(names[1], "rb", stdin) || !freopen(names[2], "wb", stdout)) return 2;
    if (monitor_reset(&context) != MONITOR_OK) return 1;
    for (int frame = 0; fread(sensors, sizeof sensors, 1, stdin) == 1; frame++) {
        const float before = alarm[0];
        if (monitor_step(&context, sensors, alarm) != MONITOR_OK) return 1;
        if (alarm[0] > 1.0f && before <= 1.0f) fprintf(stderr, "alarm in frame %d\n", frame);
        if (fwrite(alarm, sizeof alarm, 1, stdout) != 1) return 1;
    }
    return 0;
}
