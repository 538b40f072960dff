"""The machine: processors, memory, system functions, and the loading of object code."""
