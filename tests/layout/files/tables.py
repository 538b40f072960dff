"""The rows of the tables of operators, by the texts of their files."""

import re
from pathlib import Path

import stepnet as sn


def rows(name: str) -> set[str]:
    """The names of the operators of a format whose reader is in the folder `name`."""
    folder, names = Path(sn.__file__).parent / "layout" / "files" / name, set[str]()
    for file, table in (("operators.py", name.upper()), ("windows.py", "WINDOWS")):
        text = (folder / file).read_text("utf-8").partition(f"\n{table}: Mapping[str, Rule] = {{\n")[2]
        names |= set(re.findall(r"^    \"([\w.]+)\": ", text.partition("\n}")[0], flags=re.MULTILINE))
    return names
