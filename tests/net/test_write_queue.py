"""Queued bytes leave in their order, whole, in pieces worth a system call."""

from hypothesis import given
from hypothesis import strategies as st

from mcproxy.net.write_queue import RECORD, SMALL, WriteQueue


def test_large_piece_is_not_copied() -> None:
    queue = WriteQueue()
    data = bytes(5 * SMALL)
    queue.append(data)
    assert queue.head() is data
    queue.advance(10)
    rest = queue.head()
    assert isinstance(rest, memoryview)
    assert rest.obj is data
    assert len(rest) == len(data) - 10


def test_small_pieces_are_joined_up_to_a_record() -> None:
    queue = WriteQueue()
    for _ in range(20):
        queue.append(b"x" * 1000)
    assert len(queue.head()) == RECORD // 1000 * 1000
    assert queue.size == 20_000


def test_blocked_head_is_repeated_with_the_same_bytes_first() -> None:
    queue = WriteQueue()
    queue.append(b"abc", 1)
    blocked = bytes(queue.head())
    queue.append(b"def")
    assert bytes(queue.head()) == blocked + b"def"


#: Again and again a prime number of bytes: two pieces of it that begin near each other differ.
CONTENT = bytes(i % 251 for i in range(4 * SMALL))


@given(
    st.lists(st.integers(1, 3 * SMALL), min_size=1, max_size=30),
    st.integers(0, 3 * SMALL),
    st.lists(st.booleans() | st.integers(1, RECORD), max_size=100),
)
def test_everything_is_sent_once_and_in_order(sizes: list[int], first_sent: int, steps: list[bool | int]) -> None:
    """Each step appends a piece, in time or while a send blocks, or sends so many bytes; then all is sent."""
    pieces = [CONTENT[number : number + size] for number, size in enumerate(sizes)]
    queue = WriteQueue()
    first_sent = min(first_sent, len(pieces[0]) - 1)
    sent = [pieces[0][:first_sent]]
    waiting = list(pieces)
    queue.append(waiting.pop(0), first_sent)
    remaining = iter(steps)
    while queue.size or waiting:
        step = next(remaining, RECORD)
        if waiting and (not queue.size or isinstance(step, bool)):
            if queue.size and step:
                queue.head()  # a send that blocks
            queue.append(waiting.pop(0))
            continue
        head = queue.head()
        count = min(int(step) or 1, len(head))
        sent.append(bytes(head[:count]))
        queue.advance(count)
    assert b"".join(sent) == b"".join(pieces)
