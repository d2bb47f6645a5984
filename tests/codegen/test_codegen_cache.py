"""The cache of compiled programs: what is damaged, foreign or not the user's alone is ignored and made again; no
trouble with the disk is an error; processes may race; the least recently used goes first."""

import errno
import os
import random
import stat
import struct
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path

import pytest

import kiln
from kiln.__main__ import main
from kiln.program import disk_cache

PARTS = {"program": b'{"steps": []}', "code": bytes(range(256)) * 8, "empty": b""}


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    folder = tmp_path / "cache"
    monkeypatch.setenv("KILN_CACHE_DIR", str(folder))
    disk_cache.warn_once.cache_clear()
    return folder


@pytest.fixture
def key():
    return disk_cache.key_of("graph", "a graph")


def entry_of(place, key):
    return place / (key + disk_cache.SUFFIX)


def mode_of(path):
    return stat.S_IMODE(os.stat(path).st_mode)


def test_what_is_written_is_read(place, key):
    assert disk_cache.read(key) is None
    assert disk_cache.write(key, PARTS)
    assert disk_cache.read(key) == PARTS
    assert disk_cache.read(disk_cache.key_of("graph", "another")) is None


def test_the_directory_and_its_files_are_the_users_alone(place, key):
    before = os.umask(0)
    try:
        assert disk_cache.write(key, PARTS)
    finally:
        os.umask(before)
    assert mode_of(place) == 0o700
    assert [mode_of(path) for path in place.iterdir()] == [0o600]


def test_keys_tell_apart_what_is_joined_differently():
    assert disk_cache.key_of("ab", "c") != disk_cache.key_of("a", "bc") != disk_cache.key_of("abc")
    assert disk_cache.key_of("ab") == disk_cache.key_of(b"ab")


def test_keys_go_by_versions_and_cpu(monkeypatch):
    """All of it is in the environment's hash."""
    now = disk_cache.environment.__wrapped__()
    assert now == disk_cache.environment()
    changes = [
        (disk_cache.version, "VERSION", "0.0.0"),
        (disk_cache.torch, "__version__", "9.9.9"),
        (disk_cache, "FORMAT", 77),
        (disk_cache.cpu_info, "identity", lambda: "another CPU"),
        (disk_cache, "own_files", lambda folders=None: iter(["kiln/loops/ir.py:1:2"])),
    ]
    for owner, name, value in changes:
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, value)
            assert disk_cache.environment.__wrapped__() != now, name


def test_own_files_of_some_folders():
    """Entries that depend on some folders of Kiln: on all files in them, and on those beside the folders."""
    root = Path(kiln.__file__).parent
    every = {text.split(":")[0] for text in disk_cache.own_files()}
    some = {text.split(":")[0] for text in disk_cache.own_files(("platform", "program"))}
    within = {str(path) for folder in ("platform", "program") for path in (root / folder).rglob("*.py")}
    beside = {path for path in every if Path(path).parent == root}
    assert some == within | beside and some < every
    assert any(path.endswith(".so") for path in some)
    assert disk_cache.key_of("a", folders=("program",)) != disk_cache.key_of("a")


def test_kiln_that_is_not_in_files(monkeypatch):
    """Then nothing tells one version from another, and no process trusts another's entries."""

    def fail(folders=None):
        raise NotADirectoryError

    monkeypatch.setattr(disk_cache, "own_files", fail)
    assert disk_cache.environment.__wrapped__() != disk_cache.environment.__wrapped__()


# ---- damage ----------------------------------------------------------------------------------------------------------


def flipped(data, generator):
    damaged = bytearray(data)
    damaged[generator.randrange(len(data))] ^= 1 << generator.randrange(8)
    return bytes(damaged)


def cut(data, generator):
    return data[: generator.randrange(len(data))]


def grown(data, generator):
    return data + generator.randbytes(generator.randrange(1, 50))


def garbage(data, generator):
    return generator.randbytes(generator.randrange(0, 4000))


def swapped(data, generator):
    middle = generator.randrange(1, len(data))
    return data[middle:] + data[:middle]


def zeroed(data, generator):
    start = generator.randrange(len(data) - 1)
    return data[:start] + bytes(len(data) - start)


def foreign(data, generator):
    """Another version of the format, all else as it was."""
    return data[:8] + struct.pack("<I", generator.choice([0, 2, 3, 255, 1 << 31])) + data[12:]


def fewer(data, generator):
    return data[:12] + struct.pack("<I", generator.choice([0, 1, 2, 4, 1 << 20])) + data[16:]


MUTATIONS = [flipped, cut, grown, garbage, swapped, zeroed, foreign, fewer]


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda function: function.__name__)
def test_damaged_entries_are_ignored_and_made_again(place, key, mutation):
    generator = random.Random(mutation.__name__)
    data = disk_cache.pack(key, PARTS)
    for _ in range(25):
        place.mkdir(mode=0o700, exist_ok=True)
        damaged = mutation(data, generator)
        path = entry_of(place, key)
        path.write_bytes(damaged)
        path.chmod(0o600)
        if damaged == data:
            continue
        assert disk_cache.read(key) is None
        assert not path.exists()
        assert disk_cache.write(key, PARTS) and disk_cache.read(key) == PARTS


def test_an_entry_of_another_key_is_not_taken(place, key):
    other = disk_cache.key_of("another")
    disk_cache.write(other, PARTS)
    entry_of(place, other).rename(entry_of(place, key))
    assert disk_cache.read(key) is None


def test_a_checksum_that_fits_does_not_make_parts_of_nonsense(key):
    """Lengths are checked on their own."""
    for body in (b"", b"\1", disk_cache.PART.pack(500, 1) + b"x", disk_cache.PART.pack(1, 1 << 60) + b"xy"):
        its_key = bytes.fromhex(key)
        blank = bytes(disk_cache.HEAD.size) + body
        head = disk_cache.HEAD.pack(
            disk_cache.MAGIC, disk_cache.FORMAT, 1, its_key, disk_cache.checksum_of(its_key, 1, blank)
        )
        assert disk_cache.unpack(key, head + body) is None


@pytest.mark.parametrize("mode", [0o644, 0o660, 0o606, 0o666, 0o777, 0o604])
def test_files_that_others_can_read_or_write_are_not_taken(place, key, mode):
    disk_cache.write(key, PARTS)
    entry_of(place, key).chmod(mode)
    assert disk_cache.read(key) is None
    assert disk_cache.write(key, PARTS) and disk_cache.read(key) == PARTS
    assert mode_of(entry_of(place, key)) == 0o600


@pytest.mark.parametrize("mode", [0o770, 0o777, 0o707, 0o722])
def test_directories_that_others_can_write_are_not_used(place, key, mode):
    disk_cache.write(key, PARTS)
    place.chmod(mode)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        assert disk_cache.read(key) is None
        assert not disk_cache.write(key, PARTS)
        assert disk_cache.read(key) is None
    assert len(said) == 1 and "others can write" in str(said[0].message)
    place.chmod(0o700)
    assert disk_cache.read(key) == PARTS


def test_what_belongs_to_another_user_is_not_used(place, key, monkeypatch):
    disk_cache.write(key, PARTS)
    monkeypatch.setattr(os, "geteuid", lambda: 54321)
    with pytest.warns(UserWarning, match="belongs to another user"):
        assert disk_cache.read(key) is None
    assert not disk_cache.write(key, PARTS)


def test_links_and_directories_and_pipes_in_place_of_an_entry(place, key, tmp_path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_bytes(disk_cache.pack(key, PARTS))
    elsewhere.chmod(0o600)
    place.mkdir(mode=0o700)
    path = entry_of(place, key)
    path.symlink_to(elsewhere)
    assert disk_cache.read(key) is None
    path.unlink(missing_ok=True)
    path.mkdir()
    assert disk_cache.read(key) is None
    assert not disk_cache.write(key, PARTS)
    path.rmdir()
    os.mkfifo(path, 0o600)
    assert disk_cache.read(key) is None
    assert disk_cache.write(key, PARTS) and disk_cache.read(key) == PARTS
    assert elsewhere.exists()


# ---- trouble with the disk -------------------------------------------------------------------------------------------


class FullDisk:
    """Files that take ``room`` bytes, and then fail."""

    def __init__(self, file, room, number):
        self.file, self.room, self.number = file, room, number

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.file.close()

    def write(self, data):
        self.file.write(data[: self.room])
        self.file.flush()
        raise OSError(self.number, os.strerror(self.number))


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS])
@pytest.mark.parametrize("call", ["makedirs", "open", "write", "rename", "listdir", "fstat"])
def test_no_trouble_with_the_disk_is_an_error(place, key, monkeypatch, call, number):
    def fail(*args, **kwargs):
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        if call == "write":
            patch.setattr(disk_cache, "open", lambda *a: FullDisk(open(*a), 100, number), raising=False)
        else:
            patch.setattr(os, call, fail)
        assert not disk_cache.write(key, PARTS)
        disk_cache.read(key)
    assert not list(place.glob(disk_cache.UNFINISHED + "*"))
    assert disk_cache.write(key, PARTS) and disk_cache.read(key) == PARTS


@pytest.fixture
def small_disk(tmp_path, monkeypatch):
    folder = tmp_path / "small"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k,mode=0700", "tmpfs", folder]
    if subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("no file system can be mounted here; the test above stands in")
    monkeypatch.setenv("KILN_CACHE_DIR", str(folder))
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


def test_a_full_disk(small_disk, key):
    assert not disk_cache.write(key, {"code": bytes(200_000)})
    assert os.listdir(small_disk) == []
    assert disk_cache.write(key, PARTS) and disk_cache.read(key) == PARTS


def test_a_disk_that_cannot_be_written(small_disk, key):
    disk_cache.write(key, PARTS)
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    assert not disk_cache.write(disk_cache.key_of("other"), PARTS)
    assert disk_cache.read(key) == PARTS


def test_a_directory_that_cannot_be(tmp_path, key, monkeypatch):
    file = tmp_path / "file"
    file.write_text("")
    for name in (file, file / "below", "/proc/nowhere"):
        monkeypatch.setenv("KILN_CACHE_DIR", str(name))
        assert disk_cache.read(key) is None
        assert not disk_cache.write(key, PARTS)


def test_out_of_memory_while_writing_leaves_nothing_behind(place, key, monkeypatch):
    def fail(*args, **kwargs):
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", fail)
        with pytest.raises(MemoryError):
            disk_cache.write(key, PARTS)
    assert list(place.iterdir()) == []


# ---- many processes --------------------------------------------------------------------------------------------------

RACE = """
import sys
from kiln.program import disk_cache as cache
who = int(sys.argv[1])
keys = [cache.key_of("race", str(number)) for number in range(20)]
for turn in range(15):
    for number, key in enumerate(keys):
        parts = {"code": bytes([number]) * 5000}
        found = cache.read(key)
        assert found is None or found == parts, (turn, number)
        if (turn + number + who) % 3 == 0:
            assert cache.write(key, parts)
        if (turn * 7 + number + who) % 31 == 0:
            cache.clear()
print("done")
"""


def test_cleared_while_written(place, key, monkeypatch):
    """Another process clears the cache between the writing of a file and its move into place."""
    place.mkdir(mode=0o700)
    rename, cleared = os.rename, []

    def clear_first(*args, **kwargs):
        if not cleared:
            cleared.append(disk_cache.clear())
        return rename(*args, **kwargs)

    monkeypatch.setattr(os, "rename", clear_first)
    assert disk_cache.write(key, PARTS)
    assert len(cleared[0]) == 1 and disk_cache.read(key) == PARTS


def test_processes_that_race(place):
    started = [
        subprocess.Popen(
            [sys.executable, "-c", RACE, str(who)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for who in range(2)
    ]
    for process in started:
        out, said = process.communicate(timeout=120)
        assert out.strip() == "done", said
    assert not list(place.glob(disk_cache.UNFINISHED + "*"))


# ---- size ------------------------------------------------------------------------------------------------------------


def test_the_least_recently_used_go_first(place):
    with kiln.config.patch(cache_limit=1):
        keys = [disk_cache.key_of("entry", str(number)) for number in range(30)]
        now = time.time()
        for number, key in enumerate(keys):
            assert disk_cache.write(key, {"code": bytes(100_000)})
            for older, name in enumerate(keys[: number + 1]):
                if entry_of(place, name).exists() and older != 0:
                    os.utime(entry_of(place, name), (now - 1000 + older, now - 1000 + older))
            disk_cache.read(keys[0])  # used all the time
        left = [number for number, key in enumerate(keys) if entry_of(place, key).exists()]
    assert sum(entry.size for entry in disk_cache.entries()) <= 1_000_000
    assert left[0] == 0 and left[-1] == 29 and len(left) >= 5
    assert left[1:] == list(range(left[1], 30))


def test_files_that_a_process_died_over_go(place, key):
    place.mkdir(mode=0o700)
    old, new = place / (disk_cache.UNFINISHED + "1-a"), place / (disk_cache.UNFINISHED + "2-b")
    for path in (old, new):
        path.write_bytes(b"")
    os.utime(old, (1, 1))
    disk_cache._size_estimate.sizes.clear()
    assert disk_cache.write(key, PARTS)
    assert not old.exists() and new.exists()


def test_without_a_cache(place, key):
    with kiln.config.patch(cache=False):
        assert not disk_cache.write(key, PARTS)
        assert disk_cache.read(key) is None
    assert not place.exists()


def test_where_it_is(monkeypatch, tmp_path):
    monkeypatch.delenv("KILN_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert disk_cache.directory() == str(tmp_path / "kiln")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/somewhere")
    assert disk_cache.directory() == "/somewhere/.cache/kiln"
    # A user without a name or a home, as in containers: not a folder called ~ where we happen to be.
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    assert disk_cache.directory() == os.path.join(tempfile.gettempdir(), f"kiln-{os.geteuid()}")


# ---- the command -----------------------------------------------------------------------------------------------------


def test_the_command_shows_and_clears(place, key, capsys):
    assert main(["cache"]) == 0
    assert "entries: 0" in capsys.readouterr().out
    disk_cache.write(key, {"code": bytes(1_500_000)})
    assert main(["cache", "show"]) == 0
    shown = capsys.readouterr().out
    assert str(place) in shown and "entries: 1" in shown and "1.5 MB of at most 1000 MB" in shown
    assert main(["cache", "clear"]) == 0
    assert "1 entries removed (1.5 MB)" in capsys.readouterr().out
    assert disk_cache.entries() == []
    assert main(["cache", "clear"]) == 0


def test_the_command_on_a_directory_that_is_not_used(place, key, capsys):
    disk_cache.write(key, PARTS)
    place.chmod(0o777)
    assert main(["cache"]) == 1
    assert "others can write" in capsys.readouterr().out
    assert main(["cache", "clear"]) == 1
    assert entry_of(place, key).exists()
