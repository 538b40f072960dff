"""The digests of nets: the same for equal nets, whatever was made in between."""

import sys
from types import FrameType
from typing import Any

import pytest

from stepnet.compiler.net import ROWS, Type
from stepnet.compiler.net.digest import digest


def interrupted_in_repr(value: Any) -> None:
    """Writes a dataclass, and is interrupted just after that is marked as being written."""

    def interrupt(_: FrameType, event: str, function: Any) -> None:
        if event == "c_return" and getattr(function, "__name__", "") == "add":
            raise KeyboardInterrupt

    sys.setprofile(interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            repr(value)
    finally:
        sys.setprofile(None)


def test_an_interrupt_in_the_text_of_a_type_leaves_the_digests_as_they_are():
    left, right = Type(ROWS, (3,), "float32"), Type(ROWS, (4,), "float64")
    before = digest(left), digest(right)
    for type_ in (left, right):
        interrupted_in_repr(type_)
        assert repr(type_) == "..."  # Python's own, for ever
    assert (digest(left), digest(right)) == before
    assert digest(left) == digest(Type(ROWS, (3,), "float32")) != digest(right)
