# llvmlite ships no types. These stubs hold what generating and running code takes, and no more.
# What is missing here is added when it is first used, with the signature that the installed llvmlite has.

from llvmlite import binding as binding
from llvmlite import ir as ir

__version__: str
