"""The cache on disk: what was stored is read again, and everything else is as if it was not there."""

import errno
import os
import stat
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from constants import Constants

from stepnet.compiler.disk import entry, folder, overview, store
from stepnet.compiler.disk.settings import Settings, settings
from stepnet.errors import FileError

pytestmark = pytest.mark.skipif(not folder.HAS_MODES, reason="this system has no such permissions")

KEY, OTHER = "0123456789abcdef" * 2, "f" * 32
PAYLOAD = bytes(range(256)) * 8


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of a cache of this test's own."""
    monkeypatch.setenv("STEPNET_CACHE", "1")
    monkeypatch.setenv("STEPNET_CACHE_DIR", str(tmp_path / "cache"))
    store.COUNTS.clear()
    yield tmp_path / "cache"
    store.COUNTS.clear()


def stored(cache: Path) -> Path:
    """The file of an entry that was just stored."""
    store.put("plan", KEY, PAYLOAD)
    assert store.get("plan", KEY) == PAYLOAD
    return cache / f"{KEY}.plan"


def test_what_was_stored_is_read(cache: Path) -> None:
    assert store.get("plan", KEY) is None
    file = stored(cache)
    assert store.get("plan", OTHER) is None
    assert store.get("kernel", KEY) is None
    assert store.COUNTS == {"misses": 3, "stored": 1, "hits": 1}
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(cache.stat().st_mode) == 0o700


def test_a_payload_may_be_empty() -> None:
    store.put("plan", KEY, b"")
    assert store.get("plan", KEY) == b""


PLACES = {
    "magic": 3,
    "checksum": entry.SUM_AT + 5,
    "first byte": entry.BEGIN,
    "middle": entry.BEGIN + 1000,
    "last byte": entry.BEGIN + len(PAYLOAD) - 1,
}


@pytest.mark.parametrize("bit", [0, 7])
@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES)
def test_a_changed_bit_is_noticed(cache: Path, place: int, bit: int) -> None:
    file = stored(cache)
    data = bytearray(file.read_bytes())
    data[place] ^= 1 << bit
    file.write_bytes(data)
    assert store.get("plan", KEY) is None
    assert store.COUNTS["rejected"] == 1
    assert stored(cache) == file, "it is stored again"


@pytest.mark.parametrize("length", [0, 7, entry.BEGIN - 1, entry.BEGIN, entry.BEGIN + 1, -1])
def test_a_missing_end_is_noticed(cache: Path, length: int) -> None:
    file = stored(cache)
    file.write_bytes(file.read_bytes()[:length])
    assert store.get("plan", KEY) is None
    assert store.COUNTS["rejected"] == 1


def test_an_additional_byte_is_noticed(cache: Path) -> None:
    file = stored(cache)
    file.write_bytes(file.read_bytes() + b"\0")
    assert store.get("plan", KEY) is None


@pytest.mark.parametrize("name", [f"{OTHER}.plan", f"{KEY}.kernel"])
def test_an_entry_under_another_name_is_noticed(cache: Path, name: str) -> None:
    stored(cache).rename(cache / name)
    assert store.get(name.partition(".")[2], name.partition(".")[0]) is None
    assert store.COUNTS["rejected"] == 1


def test_a_file_of_something_else_is_noticed(cache: Path) -> None:
    stored(cache).write_bytes(b"\x7fELF" + bytes(500))
    assert store.get("plan", KEY) is None


def test_an_entry_of_another_format_is_noticed(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as other:
        other.setattr(entry, "MAGIC", b"stepnet0")
        stored(cache)
    assert store.get("plan", KEY) is None
    assert store.COUNTS["rejected"] == 1


# ---- who may have written it -------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", [0o644, 0o620, 0o602, 0o777])
def test_an_entry_that_others_may_open_is_not_read(cache: Path, mode: int) -> None:
    stored(cache).chmod(mode)
    assert store.get("plan", KEY) is None
    assert store.COUNTS["rejected"] == 1


@pytest.mark.parametrize("mode", [0o755, 0o750, 0o770, 0o777, 0o1777])
def test_a_folder_that_others_may_open_is_not_used(cache: Path, mode: int) -> None:
    stored(cache)
    cache.chmod(mode)
    assert store.get("plan", KEY) is None
    store.put("plan", OTHER, PAYLOAD)
    assert store.COUNTS["failed"] == 1
    assert not (cache / f"{OTHER}.plan").exists()
    reason = overview.why_not(settings())
    assert reason == f"{cache} is open to others, with mode {mode:o}; chmod 700 makes it private"


def test_a_folder_of_another_user_is_not_used(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stored(cache)
    own = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: own + 1)
    assert store.get("plan", KEY) is None
    assert overview.why_not(settings()) == f"{cache} belongs to user {own}, not to {own + 1}"


def test_an_entry_of_another_user_is_not_read(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = stored(cache)
    real, number = os.fstat, file.stat().st_ino

    def fstat(descriptor: int) -> Any:
        status = real(descriptor)
        if status.st_ino != number:
            return status
        fields = list(status)
        fields[stat.ST_UID] += 1
        return os.stat_result(fields)

    monkeypatch.setattr(os, "fstat", fstat)
    assert store.get("plan", KEY) is None
    assert store.COUNTS["rejected"] == 1


def test_a_link_to_a_folder_is_not_used(cache: Path) -> None:
    stored(cache)
    elsewhere = cache.with_name("elsewhere")
    cache.rename(elsewhere)
    cache.symlink_to(elsewhere)
    assert store.get("plan", KEY) is None
    assert overview.why_not(settings()) == f"{cache} is a symbolic link; name the folder itself"


def test_a_link_to_an_entry_is_not_read(cache: Path) -> None:
    file = stored(cache)
    elsewhere = cache.with_name("elsewhere")
    file.rename(elsewhere)
    file.symlink_to(elsewhere)
    assert store.get("plan", KEY) is None
    assert stored(cache) == file, "the link is replaced"
    assert not file.is_symlink()


def test_a_pipe_is_not_waited_for(cache: Path) -> None:
    file = stored(cache)
    file.unlink()
    os.mkfifo(file, 0o600)
    assert store.get("plan", KEY) is None
    assert store.COUNTS["rejected"] == 1


def test_a_file_in_place_of_the_folder(cache: Path) -> None:
    cache.write_text("no folder")
    assert store.get("plan", KEY) is None
    store.put("plan", KEY, PAYLOAD)
    assert store.COUNTS == {"misses": 1, "failed": 1}
    assert overview.why_not(settings()) == f"{cache}: File exists"


# ---- what cannot be written --------------------------------------------------------------------------------


def failing(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """Makes the system refuse to open files to be written."""
    real = os.open

    def refuse(path: Any, flags: int, *rest: Any, **named: Any) -> int:
        if flags & (os.O_WRONLY | os.O_RDWR):
            raise OSError(number, os.strerror(number))
        return real(path, flags, *rest, **named)

    monkeypatch.setattr(os, "open", refuse)


@pytest.mark.parametrize("number", [errno.EROFS, errno.EACCES, errno.EPERM])
def test_a_folder_for_reading_only(cache: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    stored(cache)
    failing(monkeypatch, number)
    assert store.get("plan", KEY) == PAYLOAD
    store.put("plan", OTHER, PAYLOAD)
    assert store.COUNTS["failed"] == 1
    assert overview.why_not(settings()) == f"{cache} cannot be written to: {os.strerror(number)}"


def test_a_full_disk(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stored(cache)
    real = os.write

    def write(descriptor: int, data: Any) -> int:
        if len(data) < 1000:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(descriptor, data[:1000])

    monkeypatch.setattr(os, "write", write)
    store.put("plan", OTHER, PAYLOAD)
    assert store.COUNTS["failed"] == 1
    assert [file.name for file in cache.iterdir()] == [f"{KEY}.plan"], "nothing is left of it"
    assert overview.why_not(settings()) == f"{cache} cannot be written to: No space left on device"


def test_an_interrupt_while_it_is_written_leaves_nothing(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored(cache)

    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        store.put("plan", OTHER, PAYLOAD)
    assert [file.name for file in cache.iterdir()] == [f"{KEY}.plan"]


def test_no_permissions_to_check(cache: Path, constants: Constants) -> None:
    stored(cache)
    constants(folder, HAS_MODES=False)
    assert store.get("plan", KEY) is None
    reason = overview.why_not(settings())
    assert reason == "on this system it cannot be checked that a folder is private"


# ---- size --------------------------------------------------------------------------------------------------


def key(number: int) -> str:
    """A key."""
    return f"{number:032x}"


def test_what_was_not_used_for_longest_is_evicted(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEPNET_CACHE_MB", "1")
    for number in range(9):
        store.put("plan", key(number), bytes(100_000))
        moment = time.time() - 1000 + number
        os.utime(cache / f"{key(number)}.plan", (moment, moment))
    assert store.get("plan", key(0)) is not None, "which is used now"
    store.put("plan", key(9), bytes(200_000))
    left = [number for number in range(10) if (cache / f"{key(number)}.plan").exists()]
    assert left == [0, 3, 4, 5, 6, 7, 8, 9]
    assert sum(file.stat().st_size for file in cache.iterdir()) <= 2**20 * store.ROOM


def test_what_is_larger_than_the_cache_is_not_stored(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEPNET_CACHE_MB", "1")
    store.put("plan", KEY, bytes(2**20))
    assert store.COUNTS == {"failed": 1}
    assert store.get("plan", KEY) is None


def test_a_folder_is_listed_when_the_share_of_its_room_is_filled(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STEPNET_CACHE_MB", "1")
    listed, real = [0], store.evict

    def evict(folder: folder.OpenFolder, most: int) -> int:
        listed.append(listed[-1] + 1)
        return real(folder, most)

    monkeypatch.setattr(store, "evict", evict)
    for number in range(100):
        store.put("plan", key(number), bytes(4000))
    room = 2**20 - 100 * 4200
    assert 4 <= listed[-1] <= 1 + 100 * 4000 / (room * store.SHARE)


def test_what_a_killed_process_left_is_removed_after_a_while(cache: Path, constants: Constants) -> None:
    stored(cache)
    constants(store, SHARES={})  # as in a process that begins
    old, new = (cache / f"{OTHER}.plan.new-{place * 16}" for place in "01")
    for file in (old, new, cache / "notes.txt"):
        file.write_text("unfinished")
    moment = time.time() - 2 * store.STALE
    os.utime(old, (moment, moment))
    store.put("plan", OTHER, PAYLOAD)
    names = {file.name for file in cache.iterdir()}
    assert names == {f"{KEY}.plan", f"{OTHER}.plan", new.name, "notes.txt"}


# ---- settings, and what is shown ---------------------------------------------------------------------------


def test_reads_are_counted(cache: Path) -> None:
    stored(cache)
    store.get("plan", KEY)
    (kept,) = overview.entries(settings())
    assert (kept.kind, kept.hits, kept.bytes) == ("plan", 2, entry.BEGIN + len(PAYLOAD))
    assert time.time() - kept.used < 60


def test_clearing_removes_entries_alone(cache: Path) -> None:
    assert overview.clear(settings()) == 0
    stored(cache)
    store.put("kernel", OTHER, PAYLOAD)
    (cache / "notes.txt").write_text("the user's own")
    assert overview.clear(settings()) == 2
    assert [file.name for file in cache.iterdir()] == ["notes.txt"]


def test_what_is_no_file_is_left(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEPNET_CACHE_MB", "1")
    stored(cache)
    kept = [f"{OTHER}.plan", f"{OTHER}.plan.new-{'0' * 16}"]
    for name in kept:
        (cache / name).mkdir()
        os.utime(cache / name, (1, 1))  # the first to be evicted, by its time
    for number in range(6):
        store.put("plan", key(number), bytes(250_000))
    assert store.COUNTS["failed"] == 0
    assert store.get("plan", key(0)) is None, "entries are evicted all the same"
    assert store.get("plan", key(5)) is not None
    assert overview.foreign_names(settings()) == kept
    assert overview.clear(settings()) == 4
    assert sorted(file.name for file in cache.iterdir()) == kept
    store.put("plan", OTHER, PAYLOAD)
    assert store.COUNTS["failed"] == 1
    assert sorted(file.name for file in cache.iterdir()) == kept, "nothing is left of an entry in its place"


def test_a_folder_that_is_not_private_is_not_cleared(cache: Path) -> None:
    file = stored(cache)
    cache.chmod(0o755)
    with pytest.raises(FileError, match=r"the cache cannot be cleared: .* is open to others, with mode 755"):
        overview.clear(settings())
    assert file.exists()


@pytest.mark.parametrize(
    ("variables", "reason"),
    [
        ({}, None),
        ({"STEPNET_CACHE": "1"}, None),
        ({"STEPNET_CACHE": "off"}, "STEPNET_CACHE is off"),
        ({"STEPNET_CACHE": "2"}, "STEPNET_CACHE is '2'; it is 0 or 1"),
        ({"STEPNET_CACHE_DIR": "here"}, "STEPNET_CACHE_DIR is 'here'; it is an absolute path"),
        ({"STEPNET_CACHE_MB": "0"}, "STEPNET_CACHE_MB is '0'; it is a whole number from 1 to 999999999"),
        ({"STEPNET_CACHE_MB": "1.5"}, "STEPNET_CACHE_MB is '1.5'; it is a whole number from 1 to 999999999"),
        (
            {"STEPNET_CACHE_MB": "9" * 5000},  # more digits than Python reads
            f"STEPNET_CACHE_MB is '{'9' * 40}'; it is a whole number from 1 to 999999999",
        ),
    ],
)
def test_settings(variables: dict[str, str], reason: str | None) -> None:
    assert Settings.of(variables).reason == reason


@pytest.mark.skipif(sys.platform == "win32", reason="HOME is a variable of POSIX")
@pytest.mark.parametrize("home", ["here", None])
def test_a_home_that_is_not_known_is_not_the_current_folder(
    monkeypatch: pytest.MonkeyPatch, home: str | None
) -> None:
    if home is None:  # and the user has no name, as in many containers
        monkeypatch.delenv("HOME", raising=False)
        monkeypatch.setattr("pwd.getpwuid", {}.__getitem__)
    else:
        monkeypatch.setenv("HOME", home)
    reason = "no home folder is known, by HOME or otherwise; STEPNET_CACHE_DIR names a folder"
    assert Settings.of({}).reason == reason
    assert Settings.of({"STEPNET_CACHE_DIR": os.path.abspath("cache")}).reason is None


def test_no_cache_is_used_with_wrong_settings(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stored(cache)
    monkeypatch.setenv("STEPNET_CACHE_MB", "much")
    assert not store.is_used()
    assert store.get("plan", KEY) is None
    store.put("plan", OTHER, PAYLOAD)
    assert [file.name for file in cache.iterdir()] == [f"{KEY}.plan"]
