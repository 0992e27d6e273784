"""The parsers: each target gives bytes to one, and lets through only what that may raise.

A target may also check what must hold for every input. What it needs is imported and made once, before the first one.
"""

from __future__ import annotations

import base64
import contextlib
import json
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.util import Finalize
from pathlib import Path
from typing import Any

from mcproxy.requests.coroutines import known
from tests.fuzz import hostile, words

Run = Callable[[bytes], None]


@dataclass(frozen=True)
class Target:
    """One parser. `make` returns what is called with each input; `words` are pieces that its format is made of."""

    name: str
    make: Callable[[], Run]
    words: Sequence[bytes] = ()
    weight: int = 1
    """The share of inputs that it gets of a common number."""
    hostile: Callable[[], Iterator[bytes]] | None = None
    """Inputs of depth and of repetition."""
    seconds_a_mb: float = 0.05
    """Processor time that such an input may take: of what strangers send, so little that no turn takes 50 ms. What
    operators give, and what clusters publish, is only to be linear.
    """


def _http1_server() -> Run:
    from tests.http.h1.harness import ServerHarness

    def run(data: bytes) -> None:
        harness = ServerHarness(head_bytes=4096)
        middle = len(data) // 2
        for piece in (data[:middle], data[middle:]):
            harness.sends(piece)
            for request in harness.requests:
                if not request.ends and request.trailers is not None:
                    request.answer()
        harness.wire.settle()
        if not harness.wire.lost:
            harness.wire.lose()
        assert all(request.ends == 1 for request in harness.requests), "an exchange did not end once"

    return run


def _http1_client() -> Run:
    from tests.http.h1.harness import ClientHarness

    def run(data: bytes) -> None:
        harness = ClientHarness()
        answer = harness.asks()
        harness.answers(data)
        if harness.wire.open:
            harness.wire.lose()
        else:
            harness.wire.settle()
        assert answer.complete or answer.failure is not None or answer.upgraded is not None, "a request has no end"

    return run


def _http2_server() -> Run:
    from tests.http.h2 import raw
    from tests.http.h2.stage import Stage

    begin = raw.PREFACE + raw.settings() + raw.SETTINGS_ACK

    def run(data: bytes) -> None:
        stage = Stage(begin=False)
        stage.wire.deliver(begin)
        stage.wire.turn()
        middle = len(data) // 2
        stage.wire.deliver(data[:middle])
        stage.wire.deliver(data[middle:])
        stage.wire.turn()
        stage.wire.settle()
        stage.leaves()

    return run


def _http2_client() -> Run:
    from tests.http.h2.client_harness import H2ClientHarness

    def run(data: bytes) -> None:
        harness = H2ClientHarness()
        _, answer = harness.asks()
        harness.answers(data)
        harness.wire.turn()
        if harness.wire.open:
            harness.wire.lose()
        else:
            harness.wire.settle()
        assert answer.complete or answer.failure is not None, "a request has no end"

    return run


def _hpack() -> Run:
    from mcproxy.http.h2.frames import HTTP2ConnectionError
    from mcproxy.http.h2.hpack.decoder import HPACKDecoder, Representations

    shared = Representations()

    def run(data: bytes) -> None:
        decoder = HPACKDecoder(shared)
        with contextlib.suppress(HTTP2ConnectionError):
            for begin in range(0, len(data), 97):
                decoder.decode(data[begin : begin + 97], 16384, 200)

    return run


def _chunked() -> Run:
    from mcproxy.http.h1.framing import ChunkedReader, FramingError

    def run(data: bytes) -> None:
        results = []
        for step in (len(data) or 1, 7):
            reader, body = ChunkedReader(), b""
            try:
                for begin in range(0, len(data), step):
                    pieces, rest = reader.feed(data[begin : begin + step])
                    body += b"".join(pieces)
                    if rest:
                        break
                results.append(body)
            except FramingError:
                results.append(b"an error")
        whole, split = results
        assert whole == split or b"an error" in results, "the body depends on how it arrives"

    return run


def _proxy_protocol() -> Run:
    from mcproxy.net.proxy_protocol import ProxyHeaderError, parse

    def run(data: bytes) -> None:
        with contextlib.suppress(ProxyHeaderError):
            header = parse(data)
            assert header is None or header.size <= len(data)

    return run


def _sni() -> Run:
    from mcproxy.net.alpn import shared
    from mcproxy.net.certificate_store import server_name
    from mcproxy.net.name_table import NameTable
    from mcproxy.proxy.routes import host_name

    table: Any = NameTable([("a.example.com", 1), ("*.example.com", 2), ("localhost", 3)])

    class Connection:
        def __init__(self, name: bytes) -> None:
            self.name = name

        def get_servername(self) -> bytes:
            return self.name

    def run(data: bytes) -> None:
        connection: Any = Connection(data)
        name = server_name(connection)
        if name is not None:
            table.find(name)
        table.find(host_name(data))
        shared(data)

    return run


def _request_info() -> Run:
    from mcproxy.kube.requestinfo import parse, selector_parameters, timeout_parameter
    from mcproxy.kube.status import StatusError
    from mcproxy.proxy import cluster_path

    names = {b"east", b"west"}

    def run(data: bytes) -> None:
        method, _, target = data.partition(b" ")
        with contextlib.suppress(StatusError):
            parse(method, target)
        with contextlib.suppress(StatusError):
            selector_parameters(target)
            timeout_parameter(target)
        with contextlib.suppress(StatusError):
            cluster_path.split(target, "server", names)
        with contextlib.suppress(StatusError):
            cluster_path.split_aggregate(target, names)

    return run


def _selectors() -> Run:
    from mcproxy.kube import selectors
    from mcproxy.kube.status import StatusError

    labels = {"a": "b", "x.io/y": "1"}

    def run(data: bytes) -> None:
        text = data.decode("utf-8", "surrogateescape")
        with contextlib.suppress(StatusError):
            matcher = selectors.label_matcher(selectors.parse_label_selector(text))
            if matcher is not None:
                matcher(labels)
        with contextlib.suppress(StatusError):
            selectors.parse_field_selector(text)

    return run


def _list_options() -> Run:
    from mcproxy.kube import list_options, media_types
    from mcproxy.kube.query_parameters import parse_query
    from mcproxy.kube.status import StatusError

    def run(data: bytes) -> None:
        for watch in (False, True):
            with contextlib.suppress(StatusError):
                list_options.parse(parse_query(data), watch=watch)
        text = data.decode("latin-1")
        media_types.clauses(text)
        media_types.accepts_gzip(data)
        with contextlib.suppress(StatusError):
            media_types.negotiate(text, list_of=("apps", "Deployment"))

    return run


def _resource_versions() -> Run:
    from mcproxy.aggregate.reads.continue_token import decode_token
    from mcproxy.aggregate.resource_version.layout import Layout, LayoutHistory
    from mcproxy.aggregate.resource_version.reader import VersionReader
    from mcproxy.kube.status import StatusError

    reader = VersionReader(LayoutHistory(Layout(("east", "west"))))

    def run(data: bytes) -> None:
        text = data.decode("latin-1")
        for read in (
            reader.read,
            decode_token,
            lambda text: reader.read(text, "east"),
            lambda text: reader.owner_part(text, "east"),
            lambda text: reader.list_part(text, "west"),
        ):
            with contextlib.suppress(StatusError):
                read(text)
        with contextlib.suppress(ValueError):
            LayoutHistory.from_json(data)

    return run


def _identity_headers() -> Run:
    from mcproxy.identity import cross_site
    from mcproxy.identity.client_identity_headers import split_identity_headers
    from mcproxy.identity.impersonation import requested_impersonation
    from mcproxy.kube.status import StatusError

    token, text = (
        re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+"),
        re.compile(rb"[\t\x20-\x7e\x80-\xff]*"),
    )  # what heads pass on

    def run(data: bytes) -> None:
        block = b""
        for line in data.split(b"\r\n"):
            name, colon, value = line.partition(b":")
            if colon and token.fullmatch(name) and text.fullmatch(value.strip()):
                block += b"%b: %b\r\n" % (name, value.strip())
        with contextlib.suppress(StatusError):
            headers = split_identity_headers(block)
            left = headers.fields.lower().replace(b"_", b"-")
            for name in (b"authorization:", b"impersonate-", b"x-remote-", b"x-forwarded-"):
                assert not left.startswith(name), f"{name!r} is passed on"
                assert b"\n" + name not in left, f"{name!r} is passed on"
            requested_impersonation(headers)
            cross_site.check_same_origin(headers, b"a.example.com")
        cross_site.is_foreign(data.decode("latin-1"))

    return run


def _jwt() -> Run:
    from mcproxy.identity.authentication.oidc.oidc_authenticator import OIDCAuthenticator
    from mcproxy.identity.authentication.token_authenticator import Accepted
    from tests.identity.issuer import config
    from tests.support.clock import Clock
    from tests.upstream.fakes import make_upstream_context

    authenticator = OIDCAuthenticator((config(),), make_upstream_context(Clock()))

    def run(data: bytes) -> None:
        result = known(authenticator.authenticate(data))
        assert not isinstance(result, Accepted) or data in accepted, "a changed token was accepted"

    accepted = {path.read_bytes() for path in (Path(__file__).parent / "corpus" / "jwt").glob("*")}
    return run


def _json_documents() -> Run:
    from mcproxy.identity.authentication.oidc.key_source import parse_keys
    from mcproxy.identity.authentication.token_review import decode_review
    from mcproxy.identity.reviewer_log import UnavailableError
    from mcproxy.identity.strict_json import json_object
    from mcproxy.kube.status import read_status

    def run(data: bytes) -> None:
        with contextlib.suppress(ValueError):
            json_object(data)
        with contextlib.suppress(ValueError):
            parse_keys(data)
        with contextlib.suppress(UnavailableError):
            decode_review(data, "token", ("k8s",))
        read_status(data)

    return run


def _discovery() -> Run:
    from mcproxy.aggregate.discovery.openapi_documents import read_index, read_schema
    from mcproxy.aggregate.discovery.openapi_merge import Spec, everything, merge_specs
    from mcproxy.kube import discovery

    other = b'{"openapi":"3.0.0","info":{},"paths":{"/a":{}},"components":{"schemas":{"a":{"type":"object"}}}}'

    def run(data: bytes) -> None:
        for read in (
            lambda: discovery.api_resources(discovery.read_aggregated(data)),
            lambda: discovery.read_core_versions(data),
            lambda: discovery.read_groups(data),
            lambda: discovery.read_resources(data, "", "v1"),
            lambda: read_index(data),
            lambda: read_schema(data, "apps", "v1", "Deployment"),
            lambda: merge_specs([Spec(data, everything), Spec(other, everything)]),
        ):
            with contextlib.suppress(discovery.DiscoveryError):
                read()

    return run


def _watch() -> Run:
    from mcproxy.aggregate.cache.decoder import MalformedResponse, ObjectDecoder
    from mcproxy.aggregate.reflector.collection import LineSplitter, LineTooLong
    from tests.aggregate.cache.objects import CONFIGMAPS

    def run(data: bytes) -> None:
        decoder = ObjectDecoder("east", CONFIGMAPS)
        with contextlib.suppress(LineTooLong):
            for line in LineSplitter(8192).feed(data + b"\n"):
                with contextlib.suppress(MalformedResponse):
                    decoder.decode_event(line, 1_700_000_000.0)
        with contextlib.suppress(MalformedResponse):
            for _ in decoder.decode_page(data, 1_700_000_000.0):
                pass

    return run


def _bodies() -> Run:
    from mcproxy.aggregate.writes.request_body import RequestBody
    from mcproxy.kube import json_edit, protobuf
    from mcproxy.kube.json_edit import MetadataEdit
    from mcproxy.kube.status import StatusError

    edit = MetadataEdit({"mcproxy.io/cluster": None}, {"mcproxy.io/cluster": None}, lambda text: text)
    types = (
        b"application/json",
        b"application/vnd.kubernetes.protobuf",
        b"application/yaml",
        b"application/json-patch+json",
        b"application/merge-patch+json",
        b"application/apply-patch+yaml",
    )

    def run(data: bytes) -> None:
        kind = types[(data[0] if data else 0) % len(types)]
        with contextlib.suppress(StatusError):
            body = RequestBody(data[1:], kind)
            body.cluster()
        with contextlib.suppress(StatusError):
            RequestBody(data[1:], kind).name()
        with contextlib.suppress(json_edit.MalformedJSON):
            json_edit.edit_metadata(data[1:], edit)
        with contextlib.suppress(json_edit.MalformedJSON):
            json_edit.edit_rows(data[1:], edit)
        with contextlib.suppress(protobuf.MalformedProtobuf):
            protobuf.edit_metadata(data[1:], edit)
        with contextlib.suppress(protobuf.MalformedProtobuf):
            protobuf.metadata_of(data[1:])

    return run


def _reviews() -> Run:
    from mcproxy.identity.review_api import review_body
    from mcproxy.kube.status import StatusError

    kinds = (review_body.TOKEN_REVIEW, review_body.ACCESS_REVIEW, review_body.LOCAL_ACCESS_REVIEW)

    def run(data: bytes) -> None:
        for media_type in (b"application/json", b"application/vnd.kubernetes.protobuf"):
            for kind in kinds:
                with contextlib.suppress(StatusError):
                    spec = review_body.read(kind, data, media_type)
                    if spec is not None:
                        review_body.token_review(spec)
                        review_body.access_review(kind, spec, "a")

    return run


def _member_answers() -> Run:
    from mcproxy.aggregate.request import MemberResponse
    from mcproxy.aggregate.writes import member_requests
    from mcproxy.aggregate.writes.uncached_reads import MemberList
    from mcproxy.kube.status import StatusError

    def run(data: bytes) -> None:
        for media_type in (b"application/json", b"application/vnd.kubernetes.protobuf"):
            answer = MemberResponse("east", 200, ((b"Content-Type", media_type),), data)
            with contextlib.suppress(StatusError):
                member_requests.read_written(answer)
            with contextlib.suppress(StatusError):
                member_requests.edited_answer(answer, str)
        with contextlib.suppress(StatusError):
            found = MemberList(answer)
            found.keys()
            found.objects()

    return run


def _api_service_objects() -> Run:
    from mcproxy.apiservices.extension_authentication import event_over, modified, over
    from mcproxy.apiservices.object_merge import (
        TABLE,
        Maker,
        RequestedForm,
        UnreadableAnswer,
        WatchMerge,
        merged_list,
        names_of,
    )

    makers = [Maker("fleet", RequestedForm(kind), lambda: 1_700_000_000.0) for kind in ("", TABLE)]

    def run(data: bytes) -> None:
        with contextlib.suppress(UnreadableAnswer):
            names_of(data)
        for put in (over, event_over):
            with contextlib.suppress(UnreadableAnswer):
                put(data, {"client-ca-file": "x"})
        with contextlib.suppress(UnreadableAnswer):
            modified(data, {"client-ca-file": "x"}, "5")
        for maker in makers:
            with contextlib.suppress(UnreadableAnswer):
                merged_list(data, maker, {"v1.example.com"}, ())
            with contextlib.suppress(UnreadableAnswer):
                WatchMerge(maker, {"v1.example.com"}, "5").lines(data + b"\n")

    return run


def _service_objects() -> Run:
    from mcproxy.services import endpoint_slices, lease
    from mcproxy.services.api_types import UnreadableObject
    from mcproxy.services.exports import source_objects
    from mcproxy.services.exports.object_keys import ObjectKey
    from mcproxy.services.writer.apply_requests import answer_of
    from mcproxy.services.writer.differences import PlannedWrite, Verb

    change = PlannedWrite(Verb.APPLY, ObjectKey("east", "", "v1", "services", "demo", "web"), "u", "7", {}, "d")

    def run(data: bytes) -> None:
        for read in (
            endpoint_slices.read_slice,
            endpoint_slices.read_service,
            source_objects.read_service,
            source_objects.read_slice_name,
            lambda data: source_objects.read_slice("a", data),
            source_objects.read_export,
            source_objects.read_import,
        ):
            with contextlib.suppress(UnreadableObject):
                read(data)
        with contextlib.suppress(lease.MalformedLeaseError):
            lease.parse_lease(data[: lease.MAX_LEASE_BODY])
        answer_of(change, 200, data)

    return run


def _published_roles() -> Run:
    from mcproxy.apiservices import role_template
    from mcproxy.apiservices.role_objects import RefusedError

    def run(data: bytes) -> None:
        with contextlib.suppress(RefusedError):
            objects = role_template.read_published(data)
            if objects is not None:
                role_template.published_roles(objects, "example.com")

    return run


def _import_objects() -> Run:
    from mcproxy.config.problem import ConfigErrors
    from mcproxy.importing.object_files import UnusableError, read_objects

    file = _folder() / "objects.yaml"

    def run(data: bytes) -> None:
        file.write_bytes(data)
        with contextlib.suppress(ConfigErrors, UnusableError):
            read_objects([str(file)])

    return run


def _certificates() -> Run:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    from mcproxy.config.files import pem
    from mcproxy.config.files.pem import parse_crl
    from mcproxy.config.server_names import names_in
    from mcproxy.identity.authentication.x509.peer import TLSPeer
    from mcproxy.identity.authentication.x509.verifier import ClientCertificateVerifier
    from mcproxy.net.tls_contexts import PairError, load_pair
    from tests.identity.certificates import NOW, authority

    verifier = ClientCertificateVerifier(authority().pem)
    made = ec.generate_private_key(ec.SECP256R1())
    key = made.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())

    def run(data: bytes) -> None:
        parse_crl(data)
        armored = b"-----BEGIN CERTIFICATE-----\n%b-----END CERTIFICATE-----\n" % base64.encodebytes(data)
        with contextlib.suppress(PairError):
            load_pair(armored, key)
        try:
            leaf: x509.Certificate | None = x509.load_der_x509_certificate(data)
        except (ValueError, x509.InvalidVersion):
            return
        assert leaf is not None
        peer = TLSPeer(leaf)
        peer.certificate_user()
        assert peer.verification(verifier, NOW).cause, "a stranger's certificate was accepted"
        pem.is_for_servers(leaf)
        names_in(leaf)

    return run


def _control_socket() -> Run:
    from tests.daemon.control.test_control_socket import World

    def run(data: bytes) -> None:
        world = World()
        protocol, _ = world.connect()
        protocol.dataReceived(data)
        protocol.dataReceived(b"\n")
        protocol.connectionLost()

    return run


def _tunnels() -> Run:
    from mcproxy.tunnels import protocol

    def run(data: bytes) -> None:
        for decode in (protocol.DialRequest.decode, protocol.DrainRequest.decode):
            with contextlib.suppress(ValueError):
                request = decode(data)
                assert decode(request.encode()) == request, "it is not read as it is written"
        cause = protocol.decode_cause(data)
        assert cause.isprintable() or not cause
        assert len(cause) <= 300
        with contextlib.suppress(ValueError):
            assert protocol.process_of(data).encode() == data.partition(b".")[0]
        assert not protocol.is_instance(data) or len(data) == 32

    return run


def _keeper() -> Run:
    from mcproxy.proxy.keeper import wire
    from mcproxy.proxy.keeper.keeper_frames import FrameError, KeeperFrameReader, decode_shared

    kinds: tuple[Any, ...] = (
        wire.Opened,
        wire.Response,
        wire.Whole,
        wire.Interim,
        wire.Refusal,
        wire.Forwarding,
        wire.ResponseNote,
    )
    kinds += (wire.Redecided, wire.Review, wire.Reviewed)
    decoders = [wire.decoder(kind) for kind in kinds]

    def run(data: bytes) -> None:
        with contextlib.suppress(FrameError):
            for _ in KeeperFrameReader().feed(data):
                pass
        for decode in (*decoders, wire.decode_user, wire.decode_refusal, wire.decode_attributes, decode_shared):
            with contextlib.suppress(FrameError):
                decode(data)

    return run


def _redis() -> Run:
    from mcproxy.dispatch.replicas.script import Ask, parse

    asks = [Ask(1, 10.0)]

    def run(data: bytes) -> None:
        try:
            reply = json.loads(data)
        except (ValueError, RecursionError):
            return
        with contextlib.suppress(ValueError):
            answer = parse(reply, asks)
            assert all(one.lease is None or 0 <= one.lease <= 10.0 for one in answer.granted)

    return run


def _folder() -> Path:
    """Return a new folder, which is removed when this process ends; of `multiprocessing`, too, which runs no atexit."""
    folder = Path(tempfile.mkdtemp(prefix="mcproxy-fuzz-"))
    Finalize(None, shutil.rmtree, (folder, True), exitpriority=0)
    return folder


def _configuration() -> Run:
    from mcproxy.config.load import load
    from mcproxy.config.problem import ConfigErrors

    folder = _folder()
    file = folder / "mcproxy.yaml"

    def run(data: bytes) -> None:
        file.write_bytes(data)
        with contextlib.suppress(ConfigErrors):
            load(str(file), environ={}, offline=True)

    return run


def _kubeconfig() -> Run:
    from mcproxy.config.load import load
    from mcproxy.config.problem import ConfigErrors

    folder = _folder()
    (folder / "mcproxy.yaml").write_text(
        "version: 1\nclusters: [{name: k, identity: Proxy, kubeconfig: {file: k.kubeconfig}}]\n"
    )

    def run(data: bytes) -> None:
        (folder / "k.kubeconfig").write_bytes(data)
        with contextlib.suppress(ConfigErrors):
            load(str(folder / "mcproxy.yaml"), environ={})

    return run


def _responses() -> Run:
    from mcproxy.aggregate.warnings import texts_of
    from mcproxy.http.h1.head_parser import parse_request_head, parse_response_head
    from mcproxy.http.messages import ProtocolError, RequestHead, UpstreamProtocolError
    from mcproxy.kube.watch_framing import EventBoundary
    from mcproxy.proxy.response_relay import restore_prefix
    from mcproxy.requests.correlation import correlate

    def run(data: bytes) -> None:
        end = data.find(b"\r\n\r\n") + 4  # what the engines parse is a whole head
        data = data[:end] if end > 3 else data + b"\r\n\r\n"
        head: RequestHead | None = None
        with contextlib.suppress(ProtocolError):
            head = parse_request_head(data, 4096, 100)
        if head is not None:
            known = correlate(head.fields)
            assert len(known.audit_id) <= 64
            assert known.fields.count(b"\n") <= head.fields.count(b"\n")
        with contextlib.suppress(UpstreamProtocolError):
            found = parse_response_head(data, b"GET")
            restore_prefix(found.fields, b"/clusters/east")
        texts_of([(b"Warning", data)])
        for kind in (b"application/json", b"application/vnd.kubernetes.protobuf;stream=watch"):
            EventBoundary(kind).passed(data)

    return run


def _exec_credential() -> Run:
    from mcproxy.config import model
    from mcproxy.upstream.credentials import CredentialError
    from mcproxy.upstream.exec_plugin import parse_exec_credential

    plugin = model.ExecPlugin(command="/bin/get-token")

    def run(data: bytes) -> None:
        with contextlib.suppress(CredentialError):
            parse_exec_credential(data, plugin)

    return run


def _state_files() -> Run:
    from mcproxy.aggregate import state_file

    path = _folder() / "state"

    def run(data: bytes) -> None:
        path.write_bytes(data)
        state_file.read(path, "kind", 1)

    return run


TARGETS: tuple[Target, ...] = (
    Target("http1_server", _http1_server, words.HTTP, 3),
    Target("http1_client", _http1_client, words.HTTP, 3),
    Target("http2_server", _http2_server, words.FRAMES, 3),
    Target("http2_client", _http2_client, words.FRAMES, 2),
    Target("hpack", _hpack, words.FRAMES, 2),
    Target("chunked", _chunked, words.HTTP, 2),
    Target("heads", _responses, words.HTTP, 2),
    Target("proxy_protocol", _proxy_protocol, (b"PROXY TCP4 ", b"\r\n", b"\r\n\r\n\x00\r\nQUIT\n", b"UNKNOWN"), 2),
    Target("sni", _sni, (b".", b"*", b"example.com", b"xn--", b"[::1]", b":443"), 1),
    Target("request_info", _request_info, words.PATH, 3),
    Target("selectors", _selectors, words.SELECTOR, 3),
    Target(
        "list_options",
        _list_options,
        (b"&", b"=", b"limit=", b"continue=", b"resourceVersionMatch=Exact", b"%", b"q=", b";as=Table"),
        2,
    ),
    Target("resource_versions", _resource_versions, (b"eyJ", b"==", b"0", b"-", b'{"v":'), 2),
    Target("identity_headers", _identity_headers, words.FIELDS, 3),
    Target("jwt", _jwt, (b".", b"eyJ", b"=", b"e30", b"bm9uZQ"), 1),
    Target("identity_documents", _json_documents, words.JSON, 2, hostile.json_objects, 5.0),
    Target("discovery", _discovery, words.JSON, 2, hostile.json_objects, 10.0),
    Target("watch", _watch, words.JSON, 3, hostile.json_objects),
    Target(
        "bodies",
        _bodies,
        (*words.JSON, *words.YAML[:12], b"k8s\x00", b"\x0a\x04", b'[{"op":"add","path":"/metadata"}]'),
        2,
        hostile.bodies,
    ),
    # What some targets read in several ways takes several times as long.
    Target("reviews", _reviews, (*words.JSON, b"k8s\x00"), 1, hostile.json_objects, 0.6),
    Target("member_answers", _member_answers, (*words.JSON, b"k8s\x00"), 1, hostile.json_objects, 0.2),
    Target("api_service_objects", _api_service_objects, words.JSON, 1, hostile.json_objects, 0.2),
    Target(
        "service_objects", _service_objects, (*words.JSON, b'"endpoints":', b'"spec":'), 1, hostile.json_objects, 0.5
    ),
    Target("published_roles", _published_roles, (*words.JSON, *words.YAML[:12]), 1, hostile.yaml_texts, 5.0),
    Target("certificates", _certificates, (b"-----BEGIN X509 CRL-----\n", b"\x30\x82", b"\x06\x03\x55\x04\x03"), 2),
    Target("control_socket", _control_socket, (*words.JSON[:9], b'"command"', b'"now"', b"\n"), 1, hostile.json_values),
    Target(
        "tunnels",
        _tunnels,
        (*words.JSON[:9], b'"ticket"', b'"protocol"', b'"h2"', b'"within"', b'"cause"', b"hub.", b"0" * 32),
        1,
        hostile.json_values,
    ),
    Target("keeper", _keeper, (b"\x93", b"\xc0", b"\xc4\x01a", b"\xdd\xff\xff\xff\xff", b"\x00\x00\x00\x01"), 2),
    Target("redis", _redis, (*words.JSON[:9], b'"default"', b"NaN", b"Infinity", b"-1"), 1),
    Target("configuration", _configuration, words.YAML, 1, hostile.yaml_texts, 20.0),
    Target(
        "kubeconfig",
        _kubeconfig,
        (*words.YAML, b"certificate-authority-data:", b"exec:", b"server:"),
        1,
        hostile.yaml_texts,
        20.0,
    ),
    Target("import_objects", _import_objects, (*words.YAML, b"kind: List", b"items:"), 1, hostile.yaml_texts, 20.0),
    Target("exec_credential", _exec_credential, words.JSON, 1, hostile.json_objects, 5.0),
    Target("state_files", _state_files, (b"\n", b"mcproxy"), 1),
)
"""In the order of docs: what clients send, what clusters send, what operators and neighbours give."""
