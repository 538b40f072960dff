"""Readers and writers of model files.

A file is untrusted data. No code in it runs, and a damaged or hostile file raises `FileError`.

Names are imported when they are first used: a few modules of this folder belong to a stage
before those that the others need.
"""

from typing import TYPE_CHECKING

from stepnet.compiler.values.fork_guard import late_names

if TYPE_CHECKING:
    from stepnet.layout.files.choice import LayoutChoice as LayoutChoice
    from stepnet.layout.files.formats import FORMATS as FORMATS
    from stepnet.layout.files.formats import kind as kind
    from stepnet.layout.files.formats import read as read
    from stepnet.layout.files.formats import write as write
    from stepnet.layout.files.interchange import convert_file as convert_file
    from stepnet.layout.files.model import FileContents as FileContents
    from stepnet.layout.files.model import Module as Module
    from stepnet.layout.files.verified import weights as weights

__getattr__ = late_names(
    __name__,
    ("choice", "LayoutChoice"),
    ("formats", "FORMATS kind read write"),
    ("interchange", "convert_file"),
    ("model", "FileContents Module"),
    ("verified", "weights"),
)
