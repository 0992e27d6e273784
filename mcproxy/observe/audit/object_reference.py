"""The objectRef of an audit event."""

from __future__ import annotations

import msgspec


class ObjectReference(msgspec.Struct, gc=False, omit_defaults=True, rename="camel"):
    """The object of a request, in the order of k8s.io/apiserver's `audit/v1.ObjectReference`; "" omits a key."""

    resource: str = ""
    namespace: str = ""
    name: str = ""
    api_group: str = ""
    api_version: str = ""
    subresource: str = ""
