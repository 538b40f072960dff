"""Models of Hugging Face transformers: their recurrences on the CPU, run by stepnet.

    a module's forward  --reads-->  mamba_selective_scan  ->  the function of stepnet that stands in for it

`table` says which function of theirs is which of ours; `selective`, `delta`, `xlstm` and `others` have these.
`scan` runs a step over tensors, and `single` a single one of them. `tokens` runs a whole layer as one step.
`modules` puts all this into the modules of a model and takes it out again.
"""
