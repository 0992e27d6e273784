"""Reviews, which are answered and not stored: TokenReview, the four access reviews, SelfSubjectReview, TokenRequest."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from aiohttp import web

from kubesim.apimachinery.resources import JSONDict, names
from kubesim.apimachinery.status import (
    APIError,
    StatusCause,
    bad_request,
    details,
    field_invalid,
    field_not_supported,
    invalid,
)
from kubesim.apimachinery.user import User
from kubesim.auth.authentication import ISSUER, Invalid, issuer_of, verify_token
from kubesim.auth.rbac import Attributes, decide, rules_for
from kubesim.registry import objects
from kubesim.request import negotiation
from kubesim.request.call import Call
from mcproxy.kube import media_types

AUTHENTICATION, AUTHORIZATION = "authentication.k8s.io", "authorization.k8s.io"
RESOURCE_FIELDS = names("namespace verb group version resource subresource name fieldSelector labelSelector")
MIN_TOKEN_SECONDS = 600


def _ordered(value: Mapping[str, Any] | None, names: tuple[str, ...]) -> JSONDict:
    """Return the known fields in Go's order, without empty ones."""
    return {name: value[name] for name in names if value and value.get(name)}


def _field_set(value: Any) -> JSONDict:
    """Return the fieldsV1 of a client's object (lists and values are atomic here)."""
    if not isinstance(value, dict):
        return {}
    return {f"f:{name}": _nested(item) for name, item in sorted(value.items())}


def _nested(item: Any) -> JSONDict:
    return {".": {}, **_field_set(item)} if isinstance(item, dict) else {}


def _managed(call: Call, api_version: str, fields: JSONDict, *, subresource: str = "") -> list[JSONDict]:
    if not fields:
        return []
    agent = call.request.headers.get("User-Agent", "").partition("/")[0]
    entry: JSONDict = {
        "manager": call.query.get("fieldManager") or agent or "unknown",
        "operation": "Update",
        "apiVersion": api_version,
        "time": call.cluster.timestamp(),
        "fieldsType": "FieldsV1",
        "fieldsV1": {"f:spec": fields},
    }
    return [{**entry, "subresource": subresource} if subresource else entry]


def _answer(
    call: Call, kind: str, group: str, spec: JSONDict, status: JSONDict, *, metadata: Mapping[str, Any] | None = None
) -> web.StreamResponse:
    managed = _managed(call, f"{group}/v1", _field_set(spec))
    meta = {**(metadata or {}), **({"managedFields": managed} if managed else {})}
    body = {"kind": kind, "apiVersion": f"{group}/v1", "metadata": meta, "spec": spec, "status": status}
    return negotiation.respond(call, body, 201)


def _user_info(user: User) -> JSONDict:
    info: JSONDict = {"username": user.name} if user.name else {}
    if user.uid:
        info["uid"] = user.uid
    if user.groups:
        info["groups"] = list(user.groups)
    if user.extra:
        info["extra"] = {key: list(values) for key, values in sorted(user.extra.items())}
    return info


async def _token_review(call: Call) -> web.StreamResponse:
    body = await negotiation.read_object(call)
    sent = body.get("spec") or {}
    if not sent.get("token"):
        raise bad_request("token is required for TokenReview in authentication")
    spec = _ordered(sent, ("token", "audiences"))
    status: JSONDict = {}
    try:
        verified = verify_token(call.cluster, spec["token"], spec.get("audiences") or ())
        status = {"authenticated": True, "user": _user_info(verified.user), "audiences": list(verified.audiences)}
    except Invalid as error:
        text = f"[invalid bearer token, {error.reason}]" if error.reason else "invalid bearer token"
        status = {"user": {}, "error": text}
    return _answer(call, "TokenReview", AUTHENTICATION, spec, status)


def _attributes(spec: Mapping[str, Any]) -> Attributes:
    path = spec.get("nonResourceAttributes")
    if path:
        return Attributes(path.get("verb", ""), path=path.get("path", ""))
    wanted = spec.get("resourceAttributes") or {}
    return Attributes(
        wanted.get("verb", ""),
        wanted.get("group", ""),
        wanted.get("resource", ""),
        wanted.get("subresource", ""),
        wanted.get("namespace", ""),
        wanted.get("name", ""),
    )


def _access_spec(sent: Mapping[str, Any]) -> JSONDict:
    spec: JSONDict = {}
    if sent.get("resourceAttributes") is not None:
        spec["resourceAttributes"] = _ordered(sent["resourceAttributes"], RESOURCE_FIELDS)
    if sent.get("nonResourceAttributes") is not None:
        spec["nonResourceAttributes"] = _ordered(sent["nonResourceAttributes"], ("path", "verb"))
    return spec


def _check_access_spec(spec: Mapping[str, Any], *, subject: bool) -> None:
    """Validate as k8s.io/kubernetes/pkg/apis/authorization/validation. Raises APIError 422."""
    causes: list[StatusCause] = []
    both = spec.get("resourceAttributes") is not None, spec.get("nonResourceAttributes") is not None
    if all(both):
        text = "cannot be specified in combination with resourceAttributes"
        causes.append(StatusCause("FieldValueInvalid", f"Invalid value: {text}", "spec.nonResourceAttributes"))
    elif not any(both):
        text = "exactly one of nonResourceAttributes or resourceAttributes must be specified"
        causes.append(field_invalid("spec.resourceAttributes", None, text))
    if subject and not spec.get("user") and not spec.get("groups"):
        causes.append(field_invalid("spec.user", "", "at least one of user or group must be specified"))
    if causes:
        raise invalid(AUTHORIZATION, "", "", causes)


async def _access_review(call: Call) -> web.StreamResponse:
    """Serve SubjectAccessReview, LocalSubjectAccessReview and SelfSubjectAccessReview. Raises APIError 400, 422."""
    kind, namespace = call.target.kind, call.info.namespace
    own = kind == "SelfSubjectAccessReview"
    sent = (await negotiation.read_object(call)).get("spec") or {}
    spec = {**_access_spec(sent), **({} if own else _ordered(sent, ("user", "groups", "extra", "uid")))}
    _check_access_spec(spec, subject=not own)
    asked = (spec.get("resourceAttributes") or {}).get("namespace", "")
    if kind == "LocalSubjectAccessReview" and asked != namespace:
        text = f'spec.resourceAttributes.namespace must match namespace: "{asked}" is not "{namespace}"'
        raise bad_request(text)
    extra = {key: tuple(values) for key, values in (spec.get("extra") or {}).items()}
    subject = User(spec.get("user", ""), spec.get("uid", ""), tuple(spec.get("groups") or ()), extra)
    decision = decide(call.cluster, call.user if own else subject, _attributes(spec), starting=call.starting)
    status = {"allowed": decision.allowed, **({"reason": decision.reason} if decision.reason else {})}
    return _answer(call, kind, AUTHORIZATION, spec, status, metadata={"namespace": namespace} if namespace else None)


async def _self_subject_rules_review(call: Call) -> web.StreamResponse:
    body = await negotiation.read_object(call)
    namespace = (body.get("spec") or {}).get("namespace", "")
    if not namespace:
        raise bad_request("no namespace on request")
    resource_rules, path_rules = [], []
    for rule in rules_for(call.cluster, call.user, namespace):
        if rule.get("resources"):
            resource_rules.append(_ordered(rule, ("verbs", "apiGroups", "resources", "resourceNames")))
        if rule.get("nonResourceURLs"):
            path_rules.append(_ordered(rule, ("verbs", "nonResourceURLs")))
    status = {"resourceRules": resource_rules, "nonResourceRules": path_rules, "incomplete": False}
    answer = {
        "kind": "SelfSubjectRulesReview",
        "apiVersion": f"{AUTHORIZATION}/v1",
        "metadata": {},
        "spec": {},
        "status": status,
    }
    return negotiation.respond(call, answer, 201)


async def _self_subject_review(call: Call) -> web.StreamResponse:
    await negotiation.read_object(call)
    answer = {
        "kind": "SelfSubjectReview",
        "apiVersion": f"{AUTHENTICATION}/v1",
        "metadata": {"creationTimestamp": call.cluster.timestamp()},
        "status": {"userInfo": _user_info(call.user)},
    }
    return negotiation.respond(call, answer, 201)


def _bound_claims(call: Call, reference: Mapping[str, Any]) -> dict[str, JSONDict]:
    """Return the claims for the object that a token is bound to. Raises APIError 404, 409, 422."""
    kind, name = reference.get("kind", ""), reference.get("name", "")
    plural = {"Pod": "pods", "Secret": "secrets", "Node": "nodes"}.get(kind)
    if plural is None:
        cause = field_not_supported("spec.boundObjectRef.kind", kind, ("Node", "Pod", "Secret"))
        raise invalid(AUTHENTICATION, "TokenRequest", "", [cause])
    namespace = "" if plural == "nodes" else call.info.namespace
    found = objects.get(call.cluster, objects.served_resource(call.cluster, "", plural), namespace, name)
    uid = found["metadata"]["uid"]
    if reference.get("uid") and reference["uid"] != uid:
        text = f"the UID in the bound object reference ({reference['uid']}) does not match the UID in record."
        message = f'Operation cannot be fulfilled on {kind.lower()} "{name}": {text} The object might have been deleted'
        raise APIError(409, "Conflict", message, details(name, "", kind.lower()))
    claims = {kind.lower(): {"name": name, "uid": uid}}
    node_name = (found.get("spec") or {}).get("nodeName") if kind == "Pod" else None
    node = call.cluster.store.get(("", "nodes"), "", node_name) if node_name else None
    if node is not None:
        claims["node"] = {"name": node_name, "uid": node["metadata"]["uid"]}
    return claims


async def handle_token(call: Call) -> web.StreamResponse:
    """Serve POST serviceaccounts/{name}/token. Raises APIError 404, 409, 422."""
    body = await negotiation.read_object(call, kind="TokenRequest")
    info = call.info
    account = objects.get(
        call.cluster, objects.served_resource(call.cluster, "", "serviceaccounts"), info.namespace, info.name
    )
    sent = body.get("spec") or {}
    seconds = int(sent.get("expirationSeconds") or 3600)
    if seconds < MIN_TOKEN_SECONDS:
        cause = field_invalid("spec.expirationSeconds", seconds, "may not specify a duration less than 10 minutes")
        raise invalid(AUTHENTICATION, "TokenRequest", "", [cause])
    reference = _ordered(sent.get("boundObjectRef"), ("kind", "apiVersion", "name", "uid")) or None
    audiences = list(sent.get("audiences") or [ISSUER])
    bound = _bound_claims(call, reference) if reference else {}
    token = issuer_of(call.cluster).issue(info.namespace, account, audiences=audiences, seconds=seconds, bound=bound)
    fields = _field_set({**_ordered(sent, ("audiences", "boundObjectRef")), "expirationSeconds": seconds})
    fields.get("f:boundObjectRef", {}).pop(".", None)
    metadata = {
        "name": info.name,
        "namespace": info.namespace,
        "uid": account["metadata"]["uid"],
        "creationTimestamp": call.cluster.timestamp(),
        "managedFields": _managed(call, f"{AUTHENTICATION}/v1", fields, subresource="token"),
    }
    expires = call.cluster.now().timestamp() + seconds
    answer = {
        "kind": "TokenRequest",
        "apiVersion": f"{AUTHENTICATION}/v1",
        "metadata": metadata,
        "spec": {"audiences": audiences, "expirationSeconds": seconds, "boundObjectRef": reference},
        "status": {"token": token, "expirationTimestamp": _stamp(expires)},
    }
    return negotiation.respond(call, answer, 201)


def _stamp(seconds: float) -> str:
    return datetime.fromtimestamp(int(seconds), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


async def handle(call: Call) -> web.StreamResponse:
    """Serve the POST of a review."""
    return await HANDLERS[call.info.group, call.info.resource](call)


Handler = Callable[[Call], Awaitable[web.StreamResponse]]
HANDLERS: dict[tuple[str, str], Handler] = {
    (AUTHENTICATION, "tokenreviews"): _token_review,
    (AUTHENTICATION, "selfsubjectreviews"): _self_subject_review,
    (AUTHORIZATION, "subjectaccessreviews"): _access_review,
    (AUTHORIZATION, "localsubjectaccessreviews"): _access_review,
    (AUTHORIZATION, "selfsubjectaccessreviews"): _access_review,
    (AUTHORIZATION, "selfsubjectrulesreviews"): _self_subject_rules_review,
}
"""By group and resource; each is for POST (verb create) alone."""


async def openid_configuration(call: Call) -> web.StreamResponse:
    """Serve GET /.well-known/openid-configuration."""
    document = issuer_of(call.cluster).discovery(call.request.host)
    return _document(call, document, "application/json")


async def openid_keys(call: Call) -> web.StreamResponse:
    """Serve GET /openid/v1/jwks, only as application/jwk-set+json."""
    media_type = "application/jwk-set+json"
    accept = call.request.headers.get("Accept", "")
    if accept and not any(media_types.matches(media_type, clause.media_type) for clause in media_types.clauses(accept)):
        text = f"406: Not Acceptable\n\nAvailable representations: {media_type}"
        raise APIError(406, "NotAcceptable", text, {})
    return _document(call, issuer_of(call.cluster).jwks(), media_type)


def _document(call: Call, document: JSONDict, media_type: str) -> web.StreamResponse:
    body = negotiation.encode(document, media_types.JSON).rstrip(b"\n")
    headers = {"Content-Type": media_type, "Cache-Control": "public, max-age=3600"}
    return web.Response(body=body, headers=headers)
