# llvmlite.binding.ffi: the lock that stands around each call of LLVM.

class _Lock:
    def __enter__(self) -> None: ...
    def __exit__(self, *details: object) -> None: ...

class _Library:
    _lock: _Lock

lib: _Library

def get_library_name() -> str: ...
