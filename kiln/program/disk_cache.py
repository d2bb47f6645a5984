"""The disk cache: one file an entry, found by a hash of everything that it depends on.

Entries are bytes under names, never pickled objects. The directory and its files belong to the user alone: a directory
that others own or can write is not used, because what is in it is run. A file is written under another name and
renamed, so processes may race. It carries a checksum, its key and the version of the format; a file that is damaged,
truncated, foreign or open to others is removed and made again. No failure of the disk (full, read-only, gone) is an
error: the program was compiled nevertheless.

The least recently used entries are removed where all entries exceed `kiln.config.cache_limit` megabytes. `python -m
kiln cache` shows and clears it. ``KILN_CACHE_DIR`` names the directory, else it is ``~/.cache/kiln``;
`kiln.config.cache` turns it off.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import stat
import struct
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator, Mapping

import torch

from kiln.config import config

from .. import version
from ..platform import cpu_info
from ..platform.light_dataclass import dataclass
from ..platform.locks import new_lock

FORMAT = 1
MAGIC = b"kiln\r\n\x1a\n"  # a copy with changed line ends is recognized at once
HEAD = struct.Struct("<8sII32s32s")  # magic, version of the format, how many parts, the key, the checksum of the rest
PART = struct.Struct("<HQ")  # lengths of a name and of its bytes
SUFFIX = ".entry"
UNFINISHED = "unfinished-"  # how files begin that are being written
ABANDONED = 3600  # seconds after which such a file is abandoned
LARGEST = 1 << 30  # bytes of an entry; more is damage
CLEARED_AT_MOST = 10  # how often a file is written again because another process cleared the cache meanwhile
KEPT_SHARE = 0.8  # of the limit, after the oldest entries went
OTHERS = stat.S_IRWXG | stat.S_IRWXO
OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH

SUPPORTED = hasattr(os, "geteuid") and os.open in os.supports_dir_fd  # elsewhere the owner of a file is unknown

Parts = dict[str, bytes]


@dataclass(eq=False)  # never changed
class Entry:
    """A file of the cache."""

    name: str
    size: int
    used: float  # when it was read or written last


def is_on() -> bool:
    return config.cache and SUPPORTED


# ---- where -----------------------------------------------------------------------------------------------------------


def directory() -> str:
    """The cache's directory, whether it is there or not."""
    named = os.environ.get("KILN_CACHE_DIR")
    if named:
        return os.path.abspath(named)
    home = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    if home.startswith("~"):  # a user whom the system does not know
        return os.path.join(tempfile.gettempdir(), f"kiln-{os.geteuid()}")
    return os.path.join(os.path.abspath(home), "kiln")


class Refused(OSError):
    """A directory that is not the user's alone."""


@contextlib.contextmanager
def open_directory(create: bool = False) -> Iterator[int]:
    """The directory as a file descriptor, checked: it stays the same directory, even if it is renamed."""
    path = directory()
    if create:
        os.makedirs(path, mode=0o700, exist_ok=True)
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        found = os.fstat(descriptor)
        if found.st_uid != os.geteuid() or found.st_mode & OTHERS_WRITE:
            raise Refused(f"{path} belongs to another user, or others can write to it")
        yield descriptor
    finally:
        os.close(descriptor)


@functools.cache
def warn_once(message: str) -> None:
    warnings.warn(f"kiln: no cache of compiled programs: {message}", stacklevel=3)


def warn_if_refused(error: OSError) -> None:
    """Warns once of a directory that is not trusted; a full disk is no reason to warn."""
    if isinstance(error, Refused):
        warn_once(str(error))


# ---- keys ------------------------------------------------------------------------------------------------------------


def key_of(*texts: str | bytes, folders: tuple[str, ...] | None = None) -> str:
    """The name of an entry: a hash of what it was made from, on this machine, by these versions.

    ``folders``: the folders of Kiln whose code has a say in the entry; None: all of Kiln.
    """
    found = hashlib.sha256(environment(folders))
    for text in texts:
        data = text.encode() if isinstance(text, str) else text
        found.update(struct.pack("<Q", len(data)))
        found.update(data)
    return found.hexdigest()


@functools.cache
def environment(folders: tuple[str, ...] | None = None) -> bytes:
    """Kiln, its own files, torch, Python, LLVM and the CPU, as a hash."""
    parts = [str(FORMAT), version.VERSION, torch.__version__, str(torch.version.git_version), sys.version]
    try:
        parts += [cpu_info.identity(), *own_files(folders)]
    except OSError:  # Kiln is not in files: its version is unknown, so entries are for this process alone
        parts.append(os.urandom(16).hex())
    return hashlib.sha256("\0".join(parts).encode()).digest()


def own_files(folders: tuple[str, ...] | None = None) -> Iterator[str]:
    """Kiln's files with sizes and times: a change of one invalidates the entries that depend on it.

    All files are asked for their times, which takes milliseconds. So an entry that only some folders have a say in
    names them; the files beside the folders (the native module, settings) always count.
    """
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    pending = [root] if folders is None else [os.path.join(root, folder) for folder in folders]
    if folders is not None:
        yield from described([item for item in scanned(root) if is_code(item)])
    while pending:
        found = scanned(pending.pop())
        yield from described([item for item in found if is_code(item)])
        pending += [item.path for item in found if item.is_dir() and item.name != "__pycache__"]


def scanned(folder: str) -> list[os.DirEntry[str]]:
    with os.scandir(folder) as found:
        return sorted(found, key=lambda item: item.name)


def is_code(item: os.DirEntry[str]) -> bool:
    return item.name.endswith((".py", ".so", ".pyd"))


def described(items: list[os.DirEntry[str]]) -> Iterator[str]:
    for item in items:
        status = item.stat()
        yield f"{item.path}:{status.st_size}:{status.st_mtime_ns}"


# ---- reading ---------------------------------------------------------------------------------------------------------


def read(key: str) -> Parts | None:
    """The parts of an entry; None where there is none that can be trusted."""
    if not is_on():
        return None
    try:
        with open_directory() as folder:
            data = read_file(folder, key + SUFFIX)
            parts = unpack(key, data) if data is not None else None
            if parts is None:
                with contextlib.suppress(OSError):
                    os.unlink(key + SUFFIX, dir_fd=folder)
            return parts
    except FileNotFoundError:
        return None
    except OSError as error:
        warn_if_refused(error)
        return None


def read_file(folder: int, name: str) -> bytes | None:
    """A file's bytes, and the note that it was used; None where it is not the user's own and private, or no file."""
    descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    with open(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & OTHERS:
            return None
        if found.st_size > LARGEST:
            return None
        data = file.read()
        with contextlib.suppress(OSError):
            os.utime(descriptor)
        return data


def unpack(key: str, data: bytes) -> Parts | None:
    """The parts within an entry's bytes; None for anything but a whole entry of this key and format."""
    if len(data) < HEAD.size:
        return None
    magic, version, count, its_key, checksum = HEAD.unpack_from(data)
    if magic != MAGIC or version != FORMAT or its_key.hex() != key or checksum != checksum_of(its_key, count, data):
        return None
    parts: Parts = {}
    at = HEAD.size
    try:
        for _ in range(count):
            name_size, size = PART.unpack_from(data, at)
            at += PART.size
            name = data[at : at + name_size].decode()
            at += name_size
            parts[name] = data[at : at + size]
            at += size
    except (struct.error, UnicodeDecodeError):
        return None
    return parts if at == len(data) and len(parts) == count else None


def checksum_of(key: bytes, count: int, data: bytes) -> bytes:
    found = hashlib.sha256(struct.pack("<II", FORMAT, count) + key)
    found.update(memoryview(data)[HEAD.size :])
    return found.digest()


# ---- writing ---------------------------------------------------------------------------------------------------------


def write(key: str, parts: Mapping[str, bytes]) -> bool:
    """Keep an entry; False where it could not be kept."""
    if not is_on():
        return False
    data = pack(key, parts)
    try:
        with open_directory(create=True) as folder:
            write_file(folder, key + SUFFIX, data)
            make_room(folder, len(data))
            return True
    except OSError as error:
        warn_if_refused(error)
        return False


def pack(key: str, parts: Mapping[str, bytes]) -> bytes:
    body = b"".join(PART.pack(len(name.encode()), len(data)) + name.encode() + data for name, data in parts.items())
    blank = bytes(HEAD.size) + body
    its_key = bytes.fromhex(key)
    return HEAD.pack(MAGIC, FORMAT, len(parts), its_key, checksum_of(its_key, len(parts), blank)) + body


def write_file(folder: int, name: str, data: bytes) -> None:
    """Writes a private file, whole or not at all."""
    for _ in range(CLEARED_AT_MOST):
        with contextlib.suppress(FileNotFoundError):  # another process cleared the cache before the file had its name
            return write_file_once(folder, name, data)
    write_file_once(folder, name, data)


def write_file_once(folder: int, name: str, data: bytes) -> None:
    unfinished = f"{UNFINISHED}{os.getpid()}-{os.urandom(8).hex()}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(unfinished, flags, 0o600, dir_fd=folder)
    try:
        with open(descriptor, "wb") as file:
            file.write(data)
        os.rename(unfinished, name, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(unfinished, dir_fd=folder)
        raise


# ---- size ------------------------------------------------------------------------------------------------------------


class SizeEstimate:
    """This process's estimate of the size of the cache, so that not every write has to look at every file."""

    def __init__(self) -> None:
        self.lock = new_lock()
        self.sizes: dict[str, int] = {}  # by place

    def note(self, added: int) -> bool:
        """Count what was written; whether it is time to look at the files."""
        with self.lock:
            known = self.sizes.get(directory())
            if known is not None:
                self.sizes[directory()] = known + added
            return known is None or known + added > limit()

    def set(self, size: int) -> None:
        with self.lock:
            self.sizes[directory()] = size


_size_estimate = SizeEstimate()


def limit() -> int:
    return config.cache_limit * 1_000_000


def make_room(folder: int, added: int) -> None:
    """Removes the least recently used entries where the cache is too large."""
    if not _size_estimate.note(added):
        return
    remove_abandoned(folder)
    found = sorted(list_entries(folder), key=lambda entry: entry.used)
    total = sum(entry.size for entry in found)
    if total > limit():
        for entry in found:
            if total <= limit() * KEPT_SHARE:
                break
            with contextlib.suppress(OSError):
                os.unlink(entry.name, dir_fd=folder)
            total -= entry.size
    _size_estimate.set(total)


def remove_abandoned(folder: int) -> None:
    """Removes files of processes that died while writing them."""
    for entry in list_entries(folder, UNFINISHED, ""):
        if entry.used < time.time() - ABANDONED:
            with contextlib.suppress(OSError):
                os.unlink(entry.name, dir_fd=folder)


def list_entries(folder: int, prefix: str = "", suffix: str = SUFFIX) -> list[Entry]:
    found = []
    for name in os.listdir(folder):
        if name.startswith(prefix) and name.endswith(suffix):
            with contextlib.suppress(OSError):  # another process took it away
                status = os.stat(name, dir_fd=folder, follow_symlinks=False)
                found.append(Entry(name, status.st_size, status.st_mtime))
    return found


# ---- for `python -m kiln cache` --------------------------------------------------------------------------------------


def entries() -> list[Entry]:
    """All entries, the last used first. Raises OSError where the directory cannot be used."""
    try:
        with open_directory() as folder:
            return sorted(list_entries(folder), key=lambda entry: -entry.used)
    except FileNotFoundError:
        return []


def clear() -> list[Entry]:
    """Remove all entries, and give those that are gone. Raises OSError where the directory cannot be used."""
    gone = []
    try:
        with open_directory() as folder:
            for entry in [*list_entries(folder), *list_entries(folder, UNFINISHED, "")]:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(entry.name, dir_fd=folder)
                    gone.append(entry)
    except FileNotFoundError:
        pass
    _size_estimate.set(0)
    return gone
