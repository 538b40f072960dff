"""Packages of a static library: for CMake, as a module of Zephyr, and as a library of Arduino."""

from collections.abc import Mapping
from importlib.resources import files

from stepnet.compiler.targets.frame.machine.platforms import (
    ARDUINO,
    CMAKE,
    COFF,
    ZEPHYR,
    DevicePlatform,
)
from stepnet.compiler.values.records import dataclass


@dataclass(frozen=True)
class PackageKind:
    """A kind of package. header, archive: the places of the header and of the static library. texts: its
    other files, each with the template in `library_files`. In all, @NAME@ and the like stand for
    the model's own.
    """

    header: str
    archive: str
    texts: Mapping[str, str]


KINDS: Mapping[str, PackageKind] = {
    CMAKE: PackageKind("include/@NAME@.h", "lib/@LIBRARY@", {"@NAME@Config.cmake": "config.cmake"}),
    ZEPHYR: PackageKind(
        "include/@NAME@.h",
        "lib/@LIBRARY@",
        {
            "CMakeLists.txt": "zephyr.cmake",
            "Kconfig": "zephyr_Kconfig",
            "zephyr/module.yml": "zephyr_module.yml",
        },
    ),
    ARDUINO: PackageKind(
        "src/@NAME@.h",
        "src/@BOARDS@/@LIBRARY@",
        {"library.properties": "arduino.properties", "examples/@NAME@/@NAME@.ino": "arduino.ino"},
    ),
}
"""The kinds of packages of static libraries, by their names."""


def packaged(
    name: str, platform: DevicePlatform, kind: str, header: bytes, archive: bytes
) -> dict[str, bytes]:
    """Returns the files of a package, by their places in its folder: the header, the static library, and what
    the tools of its kind read.
    """
    row = KINDS[kind]
    values = {
        "NAME": name,
        "UPPER": name.upper(),
        "ABOUT": platform.about,
        "LIBRARY": f"{name}.lib" if platform.format == COFF else f"lib{name}.a",
        "BOARDS": platform.boards,
    }
    values["ARCHIVE"] = filled(row.archive, values)
    folder = files("stepnet.compiler.targets.frame.packages") / "library_files"
    texts = {filled(place, values): (folder / file).read_text("utf-8") for place, file in row.texts.items()}
    return {
        filled(row.header, values): header,
        values["ARCHIVE"]: archive,
        **{place: filled(text, values).encode() for place, text in texts.items()},
    }


def filled(text: str, values: Mapping[str, str]) -> str:
    """Returns a text with the model's own in place of @NAME@ and the like.

    >>> filled("lib@NAME@.a", {"NAME": "speech"})
    'libspeech.a'
    """
    for key, value in values.items():
        text = text.replace(f"@{key}@", value)
    return text
