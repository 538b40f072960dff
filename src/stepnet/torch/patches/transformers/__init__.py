"""The patch for Hugging Face transformers: the recurrences of its models on a CPU.

forward of a layer  --reads-->  mamba_selective_scan  ->  stepnet's function with the same arguments

mamba, delta_rule, ...   the families of recurrences: functions, steps, and their entries in the tables
table                    all entries, by the names that transformers has for functions, methods and layers
patch                    patches a layer by these tables; `PATCH`
check                    compares a function of transformers with stepnet's on a few numbers
scan, single             run a step over tensors; run one prepared step
adjoints                 gradients of recurrences whose state is a matrix
tokens                   runs one token through a whole layer as a single step
lengths                  reads lengths from attention masks
states                   finds other layers that run over steps, for reports
rebind                   copies methods with other globals
"""
