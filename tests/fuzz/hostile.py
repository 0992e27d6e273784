"""Inputs of depth and of repetition, which chance does not find: what is quadratic or recurses shows with them.

Each is some hundred kilobytes, and is made for the format that a target reads.
"""

from __future__ import annotations

from collections.abc import Iterator

from mcproxy.kube.protobuf import MAGIC, encode_bytes

SIZE = 200_000
LABEL = b"mcproxy.io/cluster"


def _times(piece: bytes, size: int = SIZE) -> bytes:
    return piece * max(1, size // len(piece))


def json_values() -> Iterator[bytes]:
    """Yield values: deep, wide, both; long strings and numbers; keys that stand often."""
    for depth in (90, 101, 1_200, SIZE // 10):
        for opening, inner, closing in ((b"[", b"", b"]"), (b'{"a":', b"1", b"}"), (b'[{"a":', b"[]", b"}]")):
            yield opening * depth + inner + closing * depth
        yield b"[" * depth
    deep = b"[" * 50 + b"]" * 50
    for piece in (b"1", b"[]", b"{}", b'""', b"[[]]", b'{"a":{}}', b'"["', b'"\\""', b'"\\u006d"', deep, b"1e300"):
        yield b"[" + _times(piece + b",") + b"0]"
    yield b'"' + b"x" * SIZE + b'"'
    yield b'"' + _times(b'\\"') + b'"'
    yield b'"' + _times(b"\\\\")
    yield b"9" * SIZE
    yield b"{" + _times(b'"a":1,') + b'"a":1}'
    yield b"{" + b",".join(b'"%d":""' % number for number in range(SIZE // 10)) + b"}"
    yield b" " * SIZE + b"1"


def json_objects() -> Iterator[bytes]:
    """Yield objects: a value anywhere, and metadata with much of everything."""
    for value in json_values():
        yield value
        for head in (b'{"spec":', b'{"metadata":', b'{"metadata":{"labels":', b'{"metadata":{"annotations":'):
            closing = b"}" * head.count(b"{")
            yield head + value + closing
        label = b'"labels":{"%b":"east"}' % LABEL
        yield b'{"metadata":{"name":"a",%b,"resourceVersion":"5"},"spec":{%b,"x":%b}}' % (label, label, value)
    members = [b'"resourceVersion":"1"', b'"labels":{"a":"b"}', b'"labels":{}', b'"name":"a"', b'"%b":""' % LABEL]
    for member in members:
        for head in (b"{", b'{"metadata":{', b'{"metadata":{"labels":{', b'{"preconditions":{', b'{"selector":{'):
            yield head + _times(member + b",") + member + b"}" * head.count(b"{")
    for number in (500, 4_000, 20_000):
        keys = b",".join(b'"k%d":"v"' % each for each in range(number))
        for name in (b"labels", b"annotations"):
            yield b'{"metadata":{"%b":{"%b":"x",%b}}}' % (name, LABEL, keys)
            yield b'{ "metadata" : { "%b" : { %b } } }' % (name, keys)
    yield b'{"metadata":{"annotations":{"a":"' + b"x" * SIZE + b'"}}}'
    yield _times(b'{"metadata":{}}')


def patches() -> Iterator[bytes]:
    """Yield JSON patches of many operations."""
    for operation in (
        b'{"op":"add","path":"/a","value":1}',
        b'{"op":"add","path":"/metadata/labels/a","value":"b"}',
        b'{"op":"add","path":"/metadata","value":{"labels":{"a":"b"}}}',
        b'{"op":"test","path":"/metadata/resourceVersion","value":"5"}',
        b'{"op":"move","from":"/metadata/labels/mcproxy.io~1cluster","path":"/a"}',
        b'{"op":"add","path":"%b","value":1}' % (b"/a" * 5_000),
    ):
        yield b"[" + b",".join([operation] * min(9_999, SIZE // len(operation))) + b"]"


def yaml_texts() -> Iterator[bytes]:
    """Yield YAML: each bracket and indicator deep, closed and not; many keys, anchors, tags and lines."""
    for piece in (b"[", b"{", b"- ", b"? ", b"? - ", b"&a [", b"!!seq [", b"{a: ", b"[\n", b"{[", b"a: {a: ", b"--- ["):
        for depth in (90, 101, 25_000):
            closing = b"".join(b"]" if each == ord("[") else b"}" for each in reversed(piece) if each in b"[{")
            yield b"metadata: " + piece * depth
            yield piece * depth + closing * depth
            yield b"name: mcproxy.io/cluster resourceVersion\nx:\n " + piece * depth + closing * depth
    yield "".join(f"{' ' * depth}a:\n" for depth in range(600)).encode()
    for line in (
        b"a: b\n",
        b"- a\n",
        b"# a\n",
        b"\n",
        b"a\n ",
        b"---\n",
        b"? a\n",
        b"&a a: *a\n",
        b"!t a: b\n",
        b"'a': \"b\"\n",
    ):
        yield b"metadata: {name: a}\n" + _times(line)
        yield _times(line)
    for number in (1_000, 10_000):
        yield b"".join(b"k%d: v\n" % each for each in range(number))
        yield b"metadata:\n  labels:\n    mcproxy.io/cluster: x\n" + b"".join(
            b"    k%d: v\n" % e for e in range(number)
        )
        yield b"".join(b"%%TAG !a%d! b\n" % each for each in range(number))
        yield b"[" + b"".join(b"&a%d x," % each for each in range(number)) + b"]"
    yield b"metadata:\n" + _times(b"  resourceVersion: '1'\n")
    for opening in (b"'", b'"', b"|\n ", b">\n ", b"a", b"{'", b"? |\n "):
        yield opening + _times(b"x \\n\n ")
        yield opening + b"x" * SIZE


def protobufs() -> Iterator[bytes]:
    """Yield envelopes: messages in messages, and fields that stand often."""
    nested = b""
    for _ in range(3_000):
        nested = encode_bytes(1, nested)
    entry = encode_bytes(11, encode_bytes(1, LABEL) + encode_bytes(2, b"east"))
    version = encode_bytes(6, b"5")
    entries = b"".join(encode_bytes(11, encode_bytes(1, b"k%d" % each)) for each in range(15_000))
    for meta in (nested, _times(entry), _times(version), entries, _times(b"\x58\x01"), _times(encode_bytes(12, b""))):
        yield MAGIC + encode_bytes(2, encode_bytes(1, meta))
    yield MAGIC + encode_bytes(2, _times(encode_bytes(1, version)))
    yield MAGIC + _times(encode_bytes(2, b"\x0a\x00"))
    yield MAGIC + _times(encode_bytes(1, encode_bytes(1, b"v1")))
    yield MAGIC + encode_bytes(2, _times(encode_bytes(2, encode_bytes(2, b"5"))))
    yield MAGIC + encode_bytes(2, _times(b"\x18\x00"))
    yield MAGIC + b"\xff" * SIZE


def bodies() -> Iterator[bytes]:
    """Yield bodies of writes, each with the byte before it that chooses its media type (`targets._bodies`)."""
    for each in json_objects():
        for kind in (0, 2, 4):
            yield bytes([kind]) + each
    for each in patches():
        yield b"\x03" + each
    for each in yaml_texts():
        yield b"\x02" + each
    for each in protobufs():
        yield b"\x01" + each
