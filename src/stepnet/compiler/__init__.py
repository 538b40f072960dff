"""The compiler: from the step of a recurrence to code that runs it."""
