#include <@NAME@.h>

static @NAME@_context context;

void setup() {
  @NAME@_reset(&context);
}

void loop() {
  // Fill the arrays of a frame, and call @NAME@_step: @NAME@.h declares it.
}
