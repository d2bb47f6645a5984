"""A number that varies and whose very value is needed: assumed at first, then left to Python, never without end."""

import torch

import kiln
from kiln.testing import check


def formatted(x, scale):
    y = x * scale
    text = f"{scale:.3f}"
    return y + 1, text


def repeated(x, count):
    for _ in range(count):
        x = x + 1
    return x * count


def from_item(x):
    mean = x.mean().item()
    print(f"mean {mean:.2f}")
    return x * 2 + mean


def keyed(x, key):
    table = {2: "two", 3: "three"}
    return x + key, table.get(key, "many")


def by_size(x):
    return x + 1, "-".join(str(n) for n in range(x.shape[0]))


def test_recompiles_end():
    x = torch.arange(4.0)
    numbers = [(x, value / 8 + 2) for value in range(10)]
    assert check(formatted, calls=numbers).recompiles <= 3
    assert check(repeated, calls=[(x, count) for count in range(2, 12)]).recompiles <= 5
    assert check(from_item, calls=[(x + step,) for step in range(1, 10)]).recompiles <= 5
    assert check(keyed, calls=[(x, key) for key in range(2, 12)]).recompiles <= 5
    assert check(by_size, calls=[(torch.ones(size, 2),) for size in range(2, 12)]).recompiles <= 5


def test_fullgraph_assumes_the_value():
    compiled = kiln.compile(repeated, fullgraph=True)
    x = torch.ones(2)
    for count in (2, 3, 5, 4):
        assert torch.equal(compiled(x, count), repeated(x, count))


def in_sets(x, count):
    made = {number for number in [count, 0]}
    made.add(count + 1)
    made.update([count * 2])
    return x + len(made), count in made, sorted(made)


def divided(x, count, by):
    return x + count // by, count % by


def text_of_sums(x, count):
    twice = count + count
    return x, f"{twice:>4}", f"{count + twice!r}", count


def test_varying_numbers_hashed_divided_and_written():
    x = torch.ones(2)
    check(in_sets, calls=[(x, count) for count in (3, 6, 9, 4, 2)])
    check(
        divided, calls=[(x, 7, 2), (x, 8, 3), (x, 9, 4), (x, 9, 0), (x, 5, 0), (x, 9, 5)], breaks_every=(None, "line")
    )
    check(text_of_sums, calls=[(x, count) for count in (3, 6, 3, 9, 5)])


def sum_after_its_part_was_needed(x, count):
    kiln.graph_break()

    def same(_, again=count):
        return count

    twice = count + same(int(torch.zeros(3).sum()), again=count)
    return f"{twice:>4}| {count + twice!r}", x


def test_sums_whose_parts_were_needed():
    x = torch.ones(2)
    check(sum_after_its_part_was_needed, calls=[(x, count) for count in (6, 3, 6, 3, 9)])
