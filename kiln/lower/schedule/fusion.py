"""Fusion: which writes share a nest of loops.

Writes are taken in order. A write may join a group that makes a buffer it reads, or a group that reads the same buffer.
`Fuser.join` decides: both must fit one space of loops, the write must read what the group makes at the point where it
is made, and the groups must not form a cycle. A group's space is refined where a member has finer axes: (512, 128) and
(4, 128, 128) fuse over the latter. Members may also be over the kept axes alone (what is computed from a row's sum).
kernels.py makes kernels of the groups.
"""

from __future__ import annotations

import bisect
import heapq
from collections.abc import Iterable, Sequence
from dataclasses import field, replace
from typing import Any

from kiln.loops.ir import Access, Buffer, Expr, Write, load, loads_of, walk
from kiln.loops.sizes import Size, Strides, hint, is_one, is_zero, product, same
from kiln.loops.steps import Call
from kiln.loops.tensor_views import Tensor, flip, matching_axes

from ...platform.light_dataclass import dataclass

MOST_BUFFERS, MOST_OPERATIONS = 40, 700  # of one kernel
FARTHEST = 400  # how many items apart siblings may be
MOST_CALLS_ON_GPU = 2  # between siblings: what the later one waits for keeps the earlier one's inputs alive
MOST_OF_SMALL_WRITES = 1 << 20  # elements, beside which a launch takes long


@dataclass(frozen=True)
class Axis:
    size: Size
    is_reduced: bool = False


@dataclass(eq=False)
class Member:
    """A write in a group, without axes of one element. ``is_inner``: it is over all axes of the group, otherwise over
    the kept ones."""

    write: Write
    axes: tuple[int, ...]  # of the write, those that matter
    is_inner: bool = True

    @property
    def sizes(self) -> list[Size]:
        return [self.write.shape[axis] for axis in self.axes]


@dataclass(eq=False)
class Group:
    """Writes that share loops, or a single call."""

    number: int
    space: list[Axis] = field(default_factory=list)
    members: list[Member] = field(default_factory=list)
    call: Call | None = None
    first: int = 0
    last: int = 0
    before: int = 0  # the groups that must have run, as a bit mask
    made: dict[Buffer, Member] = field(default_factory=dict)
    reads: set[Buffer] = field(default_factory=set)
    operations: int = 0

    @property
    def is_reduction(self) -> bool:
        return any(axis.is_reduced for axis in self.space)

    def axes_for(self, member: Member) -> list[int]:
        """The axes of the space that a member is over."""
        return [number for number, axis in enumerate(self.space) if member.is_inner or not axis.is_reduced]

    def strides_of(self, member: Member, strides: Strides) -> Strides | None:
        """Strides of a member's write as strides over the group's space."""
        axes = self.axes_for(member)
        runs = matching_axes(member.sizes, [self.space[axis].size for axis in axes])
        if runs is None:
            return None
        found: list[Size] = [0] * len(self.space)
        for mine, theirs in runs:
            stride = strides[member.axes[mine[0]]] if mine else 0
            for place in reversed(theirs):
                found[axes[place]] = stride
                stride = stride * self.space[axes[place]].size
        return tuple(found)


def fuse(items: Sequence[Write | Call], device: str = "cpu") -> list[Group]:
    """Groups in an order in which they can run, for a kind of device."""
    return Fuser(MOST_CALLS_ON_GPU if device == "cuda" else None, device == "cuda").run(items)


class Fuser:
    def __init__(self, most_calls: int | None = None, is_for_gpu: bool = False) -> None:
        self.is_for_gpu = is_for_gpu
        self.most_calls = most_calls  # between siblings; None: any number
        self.calls: list[int] = []  # the places of calls among the items
        self.groups: list[Group] = []
        self.writers: dict[Any, list[Group]] = {}
        self.readers: dict[Any, list[Group]] = {}
        self.sealed: Group | None = None
        self.read_together: dict[Any, list[Any]] = {}  # what the readers of a buffer read, on a GPU

    def run(self, items: Sequence[Write | Call]) -> list[Group]:
        for item in items if self.is_for_gpu else ():
            for buffer in item.reads:
                self.read_together.setdefault(buffer, []).extend(item.reads)
        for index, item in enumerate(items):
            if isinstance(item, Call):
                self.calls.append(index)
                self.add_call(item, index)
            else:
                self.add_write(item, index)
        return topological_order(self.groups)

    # ---- adding ------------------------------------------------------------------------------------------------------

    def add_call(self, call: Call, index: int) -> None:
        group = self.new_group(index)
        group.call = call
        needs = [writer for buffer in call.reads for writer in self.writers.get(buffer, ())]
        if call.is_sealed:
            if self.sealed is not None:
                needs.append(self.sealed)
            self.sealed = group
        self.must_follow(group, needs)
        for buffer in call.reads:
            self.readers.setdefault(buffer, []).append(group)
        for result in call.results:
            if result is not None:
                self.writers.setdefault(result, []).append(group)

    def add_write(self, write: Write, index: int) -> None:
        write = flip_reversed_reads(write)
        member = Member(write, tuple(axis for axis, size in enumerate(write.shape) if not is_one(size)))
        needs = self.needs(write)
        for group in self.candidates(member, index):
            if self.join(group, member, needs):
                break
        else:
            group = self.new_group(index)
            group.space = [Axis(write.shape[axis], axis in write.axes) for axis in member.axes]
            self.accept(group, member, needs)
        group.last = index

    def new_group(self, index: int) -> Group:
        group = Group(len(self.groups), first=index, last=index)
        self.groups.append(group)
        return group

    def needs(self, write: Write) -> list[Group]:
        """The groups that must run before a write: writers of what it reads, readers and writers of what it writes."""
        needs = [writer for buffer in write.reads for writer in self.writers.get(buffer, ())]
        return needs + self.writers.get(write.buffer, []) + self.readers.get(write.buffer, [])

    def is_a_number(self, buffer: Buffer, member: Member) -> bool:
        """Whether a member reads one element of a buffer, and gains nothing from others that read it: on a GPU equal
        kernels over many tensors are one launch (joint_launches.py)."""
        if not self.is_for_gpu or not member.axes:
            return False
        accesses = [access for access in loads_of(member.write.value) if access.buffer is buffer]
        return all(is_number(access, member.axes) for access in accesses)

    def candidates(self, member: Member, index: int) -> Iterable[Group]:
        """Groups that it may join: those that make what it reads, the latest first, then its siblings. On a GPU, where
        each kernel is a launch, a small write also joins readers of what the same groups make: the sums of parts. And a
        reduction joins groups whose results are read together with its own."""
        write = member.write
        found: dict[Group, None] = {}
        makers = {writer for buffer in write.reads for writer in self.writers.get(buffer, ())}
        for group in sorted(makers, key=lambda group: -group.last):
            found[group] = None
        shared = [buffer for buffer in write.reads if not self.is_a_number(buffer, member)]
        readers = {reader for buffer in shared for reader in self.readers.get(buffer, ())}
        if write.buffer.is_pieced:
            readers.update(self.writers.get(write.buffer, ()))
        if self.is_for_gpu and hint(product(write.shape)) <= MOST_OF_SMALL_WRITES:
            near = {writer for buffer in shared for writer in self.writers.get(buffer, ())}
            made = [buffer for maker in near for buffer in maker.made]
            readers.update(reader for buffer in made for reader in self.readers.get(buffer, ()))
        for group in sorted(readers, key=lambda group: -group.last):
            if index - group.last < FARTHEST and self.is_near(group, index):
                found.setdefault(group)
        if self.is_for_gpu and write.reduce:
            partners = [
                group for buffer in self.read_together.get(write.buffer, ()) for group in self.writers.get(buffer, ())
            ]
            for group in sorted(partners, key=lambda group: -group.last):
                if index - group.last < FARTHEST and self.is_near(group, index):
                    found.setdefault(group)
        return [group for group in found if group.call is None]

    def is_near(self, group: Group, index: int) -> bool:
        """Whether few calls are between a group and an item."""
        if self.most_calls is None:
            return True
        return len(self.calls) - bisect.bisect(self.calls, group.last) <= self.most_calls

    def accept(self, group: Group, member: Member, needs: Iterable[Group]) -> None:
        write = member.write
        group.members.append(member)
        group.made[write.buffer] = member
        group.reads.update(write.reads)
        group.operations += len(walk(write.value))
        self.must_follow(group, [needed for needed in needs if needed is not group])
        for buffer in write.reads:
            readers = self.readers.setdefault(buffer, [])
            if group not in readers:
                readers.append(group)
        writers = self.writers.setdefault(write.buffer, [])
        if group not in writers:
            writers.append(group)

    # ---- order -------------------------------------------------------------------------------------------------------

    def must_follow(self, group: Group, needs: Iterable[Group]) -> None:
        added = 0
        for needed in needs:
            added |= needed.before | (1 << needed.number)
        if added & ~group.before:
            group.before |= added
            bit = 1 << group.number
            for other in self.groups:
                if other.before & bit:
                    other.before |= group.before

    def makes_cycle(self, group: Group, needs: Iterable[Group]) -> bool:
        bit = 1 << group.number
        return any(needed is not group and needed.before & bit for needed in needs)

    # ---- joining -----------------------------------------------------------------------------------------------------

    def join(self, group: Group, member: Member, needs: list[Group]) -> bool:
        write = member.write
        if not self.may_scatter_together([*group.members, member]):
            return False
        if (write.buffer in group.made and not write.buffer.is_pieced) or self.makes_cycle(group, needs):
            return False
        if (
            len(group.reads | set(write.reads)) + len(group.members) > MOST_BUFFERS
            or group.operations > MOST_OPERATIONS
        ):
            return False
        for is_inner in (True, False):
            member.is_inner = is_inner
            space = joint_space(group, member)
            if space is None:
                continue
            before, group.space = group.space, space
            if self.reads_where_defined(group, member):
                self.accept(group, member, needs)
                return True
            group.space = before
        member.is_inner = True
        return False

    def may_scatter_together(self, members: Sequence[Member]) -> bool:
        """Whether scatters among members may share loops: they are ordered; on a GPU in no order anyway, so there those
        that combine nothing may, as of a cache's new keys and values."""
        scatters = [member.write for member in members if is_scatter(member.write)]
        if not scatters or not self.is_for_gpu:
            return not scatters
        return len(scatters) == len(members) and not any(write.accumulate or write.reduce for write in scatters)

    def reads_where_defined(self, group: Group, member: Member) -> bool:
        """Whether what it reads of the group's buffers is read at the point where it is made."""
        write = member.write
        for access in loads_of(write.value, *write.target.parts):
            maker = group.made.get(access.buffer)
            if maker is None:
                continue
            if len(self.writers[access.buffer]) > 1 or access.buffer.is_pieced:
                return False
            if not access.is_plain or not maker.write.target.is_plain:
                return False
            if maker.is_inner and (maker.write.is_scan or not maker.write.reduce) and not member.is_inner:
                return False
            if not read_in_place(group, member, access, maker):
                return False
        return True


def flip_reversed_reads(write: Write) -> Write:
    """Flips the axes along which a write reads made buffers backwards, so that it can fuse with their writers. The
    points of such a write have no order."""
    if write.reduce or is_scatter(write):
        return write
    made = [access.strides for access in loads_of(write.value) if access.buffer.kind == "made"]
    turned = [axis for axis in range(len(write.shape)) if made and max(hint(strides[axis]) for strides in made) < 0]
    if not turned:
        return write

    def over(expr: Expr) -> Expr:
        return flip(Tensor(write.shape, expr), turned).expr

    place = over(load(write.target)).payload
    return replace(write, target=place, value=over(write.value))


def is_number(access: Access, axes: Iterable[int]) -> bool:
    """Whether an access is to one element, at all points along the axes."""
    return access.is_plain and all(is_zero(access.strides[axis]) for axis in axes)


def is_scatter(write: Write) -> bool:
    """Whether several points may write one element."""
    return bool(write.accumulate or write.target.indirect)


def read_in_place(group: Group, member: Member, access: Access, maker: Member) -> bool:
    written = group.strides_of(maker, maker.write.target.strides)
    wanted = group.strides_of(member, access.strides)
    if written is None or wanted is None or not same(maker.write.target.offset, access.offset):
        return False
    return all(same(a, b) for a, b in zip(written, wanted, strict=True))


def joint_space(group: Group, member: Member) -> list[Axis] | None:
    """The group's space, refined so that the member fits; None where it does not."""
    write = member.write
    flags = [axis in write.axes for axis in member.axes]
    if not member.is_inner and (write.reduce or not group.is_reduction):
        return None
    places = [n for n, axis in enumerate(group.space) if member.is_inner or not axis.is_reduced]
    sizes = [group.space[place].size for place in places]
    runs = matching_axes(sizes, member.sizes)
    if runs is None:
        return None
    refined: dict[int, list[Axis]] = {}
    for theirs, mine in runs:
        if len(theirs) > 1 and len(mine) > 1:
            return None
        reduced = joint_reduced_flags(
            group, [places[t] for t in theirs], [flags[m] for m in mine], write.reduce is not None
        )
        if reduced is None:
            return None
        if len(theirs) == 1:
            refined[places[theirs[0]]] = [Axis(member.sizes[m], flag) for m, flag in zip(mine, reduced, strict=True)]
        else:
            for place, flag in zip(theirs, reduced, strict=True):
                refined[places[place]] = [Axis(group.space[places[place]].size, flag)]
    space = [part for place, axis in enumerate(group.space) for part in refined.get(place, [axis])]
    is_scanned = write.is_scan or any(other.write.is_scan for other in group.members)
    return None if is_scanned and sum(axis.is_reduced for axis in space) > 1 else space


def joint_reduced_flags(group: Group, theirs: list[int], mine: list[bool], is_reduction: bool) -> list[bool] | None:
    """Which of the finer axes are reduced after the join: both must agree, unless one of them reduces nothing."""
    have = [group.space[place].is_reduced for place in theirs]
    count = max(len(have), len(mine))
    have = have if len(have) == count else have * count
    if not is_reduction:
        return have
    wanted = mine if len(mine) == count else mine * count
    return wanted if not group.is_reduction or wanted == have else None


def topological_order(groups: list[Group]) -> list[Group]:
    """The groups, each after those it needs, otherwise by their last item."""
    waiting = {group: bin(group.before).count("1") for group in groups}
    followers: dict[int, list[Group]] = {}
    for group in groups:
        mask, number = group.before, 0
        while mask:
            low = mask & -mask
            number = low.bit_length() - 1
            followers.setdefault(number, []).append(group)
            mask ^= low
    ready = [(group.last, group.number) for group in groups if not waiting[group]]
    heapq.heapify(ready)
    found: list[Group] = []
    while ready:
        _, number = heapq.heappop(ready)
        found.append(groups[number])
        for follower in followers.get(number, ()):
            waiting[follower] -= 1
            if not waiting[follower]:
                heapq.heappush(ready, (follower.last, follower.number))
    assert len(found) == len(groups), "a cycle among kernels"
    return found
