"""Models in files of their own: `model.save("m.stepnet")`, read by `stepnet.load`.

A file is a .safetensors file, whose arrays are the parameters and constants of the model. Its metadata has,
as JSON under the key `KEY`, the nets and the structures of inputs, memories, statics and outputs:

    {"version": 1, "written_by": "0.1.0", "model": {"kind": "RNN", "body": {"nodes": [...], ...}, ...}}

A net is a list of operations on earlier ones. Their types are not stored: they are found by the type rules as
the file is read, so that a net from elsewhere is checked as a traced one is.
"""

KEY = "stepnet"
"""The key of the description among the metadata of the file."""
VERSION = 3
"""The latest version of the format that is read. It changes with the format only."""
OF_INTEGERS = 2
OF_HALF = 3
"""The versions of files of models in integers alone, and of those quantized to float16. Others have 1, which
earlier versions read.
"""
ENDING = ".stepnet"
"""The ending of the files' names."""
