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


@given(st.lists(st.integers(1, 3 * SMALL), min_size=1, max_size=30), st.data())
def test_everything_is_sent_once_and_in_order(sizes: list[int], data: st.DataObject) -> None:
    pieces = [bytes(i % 251 for i in range(number, number + size)) for number, size in enumerate(sizes)]
    queue = WriteQueue()
    first_sent = data.draw(st.integers(0, len(pieces[0]) - 1))
    sent = [pieces[0][:first_sent]]
    waiting = list(pieces)
    queue.append(waiting.pop(0), first_sent)
    while queue.size or waiting:
        if waiting and (not queue.size or data.draw(st.booleans())):
            if queue.size:
                queue.head()  # a send that blocks
            queue.append(waiting.pop(0))
            continue
        head = queue.head()
        count = data.draw(st.integers(1, len(head)))
        sent.append(bytes(head[:count]))
        queue.advance(count)
    assert b"".join(sent) == b"".join(pieces)
