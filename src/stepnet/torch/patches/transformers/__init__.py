"""The patch for Hugging Face transformers: the recurrences of its models on a CPU.

forward of a layer  --reads-->  mamba_selective_scan  ->  stepnet's function with the same arguments

mamba, delta_rule, ...   the families of recurrences: functions, steps, and their rows of the tables
table                    all rows, by the names that transformers has for functions, methods and layers
patch                    patches a layer by these tables; `PATCH`
check                    compares a function of transformers with stepnet's on a few numbers
scan, single             run a step over tensors; one step, prepared
adjoints                 gradients of recurrences whose state is a matrix
tokens                   runs one token through a whole layer as a single step
lengths                  takes lengths from attention masks
rebind                   copies methods with other globals
"""
