"""Uses of a value, as statements that leave a ``result``; each program is one ingredient in one use in one setting."""

from __future__ import annotations


def sections(text: str) -> dict[str, str]:
    """Named blocks of code, each under a heading ``--- name``."""
    blocks = (block.partition("\n") for block in text.strip().removeprefix("--- ").split("\n--- "))
    return {name: body for name, _, body in blocks}


USES: dict[str, str] = sections("""
--- for
for item in value:
    result.append(item)
    if len(result) > 6:
        break
--- for else
for item in value:
    if item == 2:
        break
else:
    result.append('else')
--- for twice
for one in value:
    for other in value:
        result.append((one, other))
        if len(result) > 8:
            break
    if len(result) > 8:
        break
--- islice
result = list(itertools.islice(value, 4))
--- list
result = list(value)
--- tuple
result = tuple(value)
--- set size
result = len(set(value))
--- sorted
result = sorted(value)
--- sum
result = sum(value)
--- max
result = max(value)
--- any
result = (any(value), all(value))
--- in
result = (2 in value, 'zz' in value)
--- not in
result = None not in value
--- unpack
first, *rest = value
result = (first, rest)
--- unpack two
a, b = value
result = [b, a]
--- star call
result = (lambda *args: args)(*value)
--- double star call
result = (lambda **kwargs: sorted(kwargs))(**value)
--- star list
result = [0, *value, 1]
--- double star dict
result = {**value}
--- dict
result = dict(value)
--- dict update
result = {'z': 0}
result.update(value)
--- list extend
result.extend(value)
--- list iadd
result += value
--- slice assign
result = [1, 2, 3]
result[1:2] = value
--- zip
result = list(zip(value, (1, 2, 3)))
--- zip after
result = list(zip((1, 2, 3), value))
--- zip strict
result = list(zip((1, 2), value, strict=True))
--- enumerate
result = [pair for pair, _ in zip(enumerate(value), range(4))]
--- map
result = list(map(lambda one, other: (one, other), (1, 2, 3), value))
--- filter
result = list(filter(None, [value, 0]))
--- reversed
result = list(reversed(value))
--- comprehension
result = [item for item, _ in zip(value, range(5)) if item]
--- generator
result = next((item for item in value if item is not None), 'none')
--- yield from
def inner():
    got = yield from value
    yield ('returned', got)
generator = inner()
result = [next(generator, 'end') for _ in range(5)]
--- next
result = [next(value, 'end'), next(value, 'end')]
--- iter
iterator = iter(value)
result = [next(iterator, 'end'), iterator is iter(iterator)]
--- sentinel
result = list(itertools.islice(iter(value, 3), 4))
--- len
result = len(value)
--- length hint
result = operator.length_hint(value, 7)
--- bool
result = 'yes' if value else 'no'
--- not
result = not value
--- and or
result = (value and 1) or 2
--- equal
result = (value == 2, 2 == value)
--- equal to itself
result = (value == value, [value] == [value], (value,) == (value,))
--- not equal
result = (value != 2, 2 != value)
--- less
result = value < 2
--- chained
result = 1 < value < 9
--- hash
result = isinstance(hash(value), int)
--- key
result = {value: 1}[value]
--- key lookup
table = {1: 'one', 5: 'five', 'a': 0}
result = table.get(value, 'none')
--- set member
group = {1, 2}
group.add(value)
result = len(group)
--- index
result = [10, 11, 12, 13, 14, 15, 16][value]
--- slice
result = [10, 11, 12, 13][:value]
--- getitem
result = value[0]
--- getitem text
result = value['a']
--- setitem
value[0] = 9
result = value[0]
--- delitem
del value[0]
result = 'deleted'
--- getitem slice
result = value[::2]
--- add
result = value + 1
--- radd
result = 1 + value
--- iadd
other = value
other += 1
result = other
--- iadd list
other = value
other += [1]
result = other
--- mul
result = value * 2
--- or
result = value | {1}
--- neg
result = -value
--- power
result = pow(value, 2, 7)
--- divmod
result = divmod(value, 2)
--- round
result = round(value, 1)
--- int
result = int(value)
--- float
result = float(value)
--- complex
result = complex(value)
--- range
result = list(range(value))[:3]
--- bytes
result = bytes(value)[:4]
--- str
result = len(str(value)) > 0
--- repr
result = len(repr(value)) > 0
--- format
result = f'{value:>5}'[-2:]
--- percent
result = '%s' % (value,) != ''
--- join
result = ','.join(value)
--- call
result = value(2)
--- call method
result = value.method(1)
--- attribute
result = value.x
--- missing attribute
result = getattr(value, 'missing', 'none')
--- has
result = (hasattr(value, '__iter__'), hasattr(value, '__len__'), hasattr(value, 'a'))
--- set attribute
value.fresh = 3
result = value.fresh
--- del attribute
del value.calls
result = hasattr(value, 'calls')
--- vars
result = sorted(vars(value))
--- dir
result = '__class__' in dir(value)
--- type
result = type(value).__name__
--- class
result = value.__class__.__name__
--- isinstance
result = (isinstance(value, dict), isinstance(value, (list, int)), isinstance(value, OddClass))
--- issubclass
result = issubclass(value, int)
--- callable
result = callable(value)
--- abc
result = (isinstance(value, collections.abc.Iterable), isinstance(value, collections.abc.Mapping))
--- match sequence
match value:
    case [a, b, *rest]:
        result = ('sequence', a, b)
    case {'a': a}:
        result = ('mapping', a)
    case Point(x, y):
        result = ('point', x)
    case int():
        result = 'int'
    case _:
        result = 'other'
--- match value
match value:
    case Color.RED | 3:
        result = 'red or three'
    case None | True:
        result = 'singleton'
    case 'ab':
        result = 'text'
    case _:
        result = 'other'
--- with
with value as entered:
    result = ['entered', entered is value]
    raise ValueError('inside')
--- raise
try:
    raise value
except BaseException as error:
    result = (type(error).__name__, error is value)
--- raise from
try:
    try:
        1 / 0
    except ZeroDivisionError as first:
        raise KeyError('second') from value
except BaseException as error:
    result = (type(error).__name__, type(error.__cause__).__name__, type(error.__context__).__name__)
--- raise in handler
try:
    try:
        raise ValueError('first')
    except ValueError:
        raise value
except BaseException as error:
    result = (type(error).__name__, type(error.__context__).__name__)
--- except
try:
    raise KeyError(1)
except value:
    result = 'caught'
--- except star
try:
    raise value
except* ValueError as group:
    result = type(group).__name__
--- copy
other = copy.copy(value)
result = (type(other).__name__, other is value)
--- deepcopy
other = copy.deepcopy(value)
result = (type(other).__name__, other is value)
--- sort key
result = sorted([3, 1, 2], key=lambda item: value)
--- sort with
result = [type(item).__name__ for item in sorted([value, value])]
--- reduce
result = functools.reduce(lambda a, b: b, value, None)
--- accumulate
result = list(itertools.islice(itertools.accumulate(value), 4))
--- groupby
result = [key for key, group in itertools.islice(itertools.groupby(value), 3)]
--- product
result = list(itertools.product(value, repeat=2))[:4]
--- deque
result = collections.deque(value, maxlen=2)
--- counter
result = collections.Counter(value)
--- from keys
result = dict.fromkeys(value, 0)
--- heap
result = heapq.nsmallest(2, value)
--- closure
def later():
    return [value, later.__name__]
result = later()[1]
--- default
def later(one=value):
    return one is value
result = later()
--- mutual list
box = [value]
box.append(box)
result = box[-1][-1][0] is value
--- change while iterating
for item in value:
    result.append(item)
    value.add(99) if hasattr(value, 'add') else value.update(zz=1) if hasattr(value, 'update') else value.append(4)
    if len(result) > 8:
        break
--- clear while iterating
for item in value:
    result.append(item)
    value.clear()
--- while
count = 0
while value:
    count += 1
    if count > 5:
        break
result = count
--- identity
result = (value is value, value is None, [value][0] is value)
--- class statement
class Inner(list):
    kept = value
    def __len__(self):
        return 3
result = (Inner.kept is value, len(Inner()))
--- subclass
class Inner(value):
    pass
result = Inner.__name__
--- exception argument
try:
    raise ValueError(value)
except ValueError as error:
    result = error.args[0] is value
--- recursion
def walk(depth):
    return value if depth == 0 else walk(depth - 1)
result = walk(60) is value
--- deep recursion
result = (deep_recursion(150), value is not None)
--- endless recursion
try:
    endless_recursion()
except RecursionError:
    result = value is not None
--- nonlocal
held = [value]
def swap():
    nonlocal held
    held, old = None, held
    return old
result = (swap()[0] is value, held)
--- delete
other = value
del value
result = other is not None
--- throw
def inner():
    try:
        yield value
    except KeyError as error:
        yield ('caught', error.args)
generator = inner()
next(generator)
result = generator.throw(KeyError('k'))
--- close
def inner():
    try:
        yield 1
    finally:
        result.append('closed')
generator = inner()
next(generator)
generator.close()
result.append(value is not None)
--- send
value.send(None)
result = [value.send(5), next(value, 'end')]
--- async
async def later():
    return value
coroutine = later()
try:
    coroutine.send(None)
except StopIteration as stop:
    result = stop.value is value
--- long loop
count = 0
for number in range(3000):
    count += number % 3
result = (count, value is not None)
--- walrus
result = [(other := value) is value, other is value]
--- global
global kept_value
kept_value = value
result = kept_value is value
del kept_value
--- tensor add
result = torch.ones(2) + value
--- tensor radd
result = value + torch.ones(2)
--- tensor index
result = torch.arange(4)[value]
--- tensor equal
result = torch.ones(2) == value
--- tensor from
result = torch.tensor(value)
--- tensor full
result = torch.full((2,), value)
--- tensor sizes
result = torch.zeros(value).shape
""")

# How the value reaches the use.
SETTINGS: dict[str, str] = sections("""
--- made inside
def program(x, make):
    x = x + 1
    value = make_value()
{body}
    return x * 2, result
--- given
def program(x, value):
    x = x + 1
{body}
    return x * 2, result
--- after a break
def program(x, value):
    x = x + 1
    kiln.graph_break()
{body}
    kiln.graph_break()
    return x * 2, result
--- called
def program(x, value):
    def inner(value):
{deeper}
        return result
    return x * 2, inner(value)
""")

BODY = """\
result = []
try:
{use}
except Exception as error:
    result = ("raised", type(error).__name__, result)"""
