"""A digest of the code that computed stored values, because other code may compute other values.

It covers the facts by which Python decides whether bytecode is up to date: size and modification time of each
source file. To read all files would take longer than to read the stored value.
"""

import os
from collections.abc import Generator
from contextlib import contextmanager
from functools import cache
from importlib.machinery import PathFinder

from stepnet.compiler.disk.folder import NotUsableError
from stepnet.compiler.values.hashing import digest_of_texts
from stepnet.compiler.values.version import __version__

PACKAGE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))
UNKNOWN = "so it cannot be checked that stored values are of this version"
MODULES = (".py", ".pyc")
"""The endings of module files; without sources these are `.pyc` files outside of `__pycache__`."""
FOUND = dict[str, list[tuple[str, int, int]]]()
"""The modules in each folder whose digest was computed: path, size and modification time."""


def sources(*folders: str) -> str:
    """Returns a digest of the modules in some folders of the package, and of its version, for cache keys."""
    return digest_of_texts(__version__, *map(folder_digest, folders))


def sizes(*folders: str) -> str:
    """Returns a digest of the paths and sizes of the modules in some folders, which is the same wherever this
    version is installed; `NotUsableError` if they are not found.
    """
    tops = {folder.split("/")[0] + "/" + folder.split("/")[1] for folder in folders}
    known = [fact[:2] for top in sorted(tops) for fact in FOUND.get(top) or folder_facts(top)]
    return digest_of_texts(repr([fact for fact in known if fact[0].startswith(folders)]))


def contents(*folders: str) -> str:
    """Returns a digest of the paths and contents of the modules in some folders, which takes longer than
    `sizes`, and notices all changes; `NotUsableError` if they are not found.
    """
    tops = {folder.split("/")[0] + "/" + folder.split("/")[1] for folder in folders}
    texts = list[str | bytes]()
    for name in (fact[0] for top in sorted(tops) for fact in folder_facts(top)):
        if name.startswith(folders):
            place = os.path.join(PACKAGE, *name.split("/"))
            with listing(place), open(place, "rb") as file:
                texts += name, file.read()
    return digest_of_texts(*texts)


@cache
def folder_digest(folder: str) -> str:
    """Returns a digest of the modules in one folder of the package, at any depth: of the paths, sizes and
    modification times of their files. It is cached. Raises `NotUsableError` if there are none.
    """
    FOUND[folder] = folder_facts(folder)
    return digest_of_texts(repr(FOUND[folder]))


def folder_facts(folder: str) -> list[tuple[str, int, int]]:
    """Lists path, size and modification time of each module in one folder of the package, at any depth, in
    order. Raises `NotUsableError` if there are none.
    """
    place = os.path.join(PACKAGE, *folder.split("/"))
    with listing(place):
        facts = sorted(facts_of(place, folder))
    if not facts:
        raise NotUsableError(f"{place} has no modules, {UNKNOWN}")
    return facts


@cache
def package_version(name: str, module: str) -> str:
    """Returns the contents of a module that is not imported, cached; raises `NotUsableError` without it."""
    found = PathFinder.find_spec(name)
    if found is None or found.origin is None:
        raise NotUsableError(f"{name} is not found, {UNKNOWN}")
    place = os.path.dirname(found.origin)
    with listing(place), open(os.path.join(place, module), encoding="utf-8") as file:
        return file.read()


@contextmanager
def listing(folder: str) -> Generator[None]:
    """Context that raises `NotUsableError` in place of an `OSError` that occurs when a folder is listed."""
    try:
        yield
    except OSError as error:
        raise NotUsableError(f"{folder} cannot be listed ({error.strerror}), {UNKNOWN}") from None


def facts_of(folder: str, name: str) -> list[tuple[str, int, int]]:
    """Lists path, size and modification time of each module in a folder, at any depth, by which changes of
    the code are noticed. name: the path of the folder in the package.
    """
    facts = list[tuple[str, int, int]]()
    with os.scandir(folder) as files:
        for file in files:
            if file.name.endswith(MODULES):
                status = file.stat()
                facts.append((f"{name}/{file.name}", status.st_size, status.st_mtime_ns))
            elif file.is_dir() and file.name != "__pycache__":
                facts += facts_of(file.path, f"{name}/{file.name}")
    return facts
