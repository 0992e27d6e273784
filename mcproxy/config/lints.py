"""The warnings of `mcproxy check`, by their stable names, and the comment that disables one.

``# mcproxy: allow NAME`` at the end of the line that a warning is about, with several names separated by commas.
"""

from __future__ import annotations

import re

LINTS = {
    "anonymous-reads": "cached reads by users who are all system:anonymous",
    "anonymous-users": "an API service whose users are all system:anonymous",
    "broad-origin": "a CORS origin whose wildcard stands for every host of a top-level zone",
    "broad-rule": "an authorization rule that includes secrets, exec or impersonation without naming them",
    "certificate-names": "a server name that no certificate covers, or a certificate without names",
    "certificate-usage": "a server certificate that is for clients only",
    "chain-order": "a certificate chain that is not in the order of its issuers",
    "default-server": "a default server with a cluster of its own beside servers of other clusters",
    "divided-limit": "a limit that is less than the number of processes that it is divided among",
    "doubled-token": "a token that occurs twice in a token file",
    "empty-configuration": "a file that serves nothing",
    "endpoints-disabled": "a cluster or a policy with disabled endpoints only",
    "expired": "a certificate that has expired",
    "expires-soon": "a certificate that expires within 30 days",
    "foreign-crl": "a revocation list of an authority that caFile does not have",
    "hides-backend": "an API service whose group-version the backend has itself",
    "in-clear": "what goes to a cluster, or to Redis, without TLS",
    "include-nothing": "an include that no file matches",
    "local-addresses": "pods of an ingress that may be at loopback or link-local addresses of the proxy's machine",
    "matches-nothing": "a rule, or an item of it, that no request matches",
    "missing-crl": "an authority without a valid revocation list: none of its certificates is accepted",
    "no-credentials": "a cluster for which the proxy has no credentials and needs them",
    "no-effect": "a value that has no effect",
    "no-http1": "a listener that speaks HTTP/2 alone: clients cannot open exec, attach and portforward",
    "no-listener": "a server without a listener",
    "no-members": "an aggregate without a cluster",
    "no-policies": "an empty dispatch: every request is refused",
    "no-prefix": "ID tokens whose user names may be equal to those of client certificates",
    "no-state-dir": "a value that a restart loses, because there is no daemon.stateDir",
    "not-an-authority": "a caFile without an authority's certificate",
    "not-verified": "a cluster, or pods of an ingress, whose certificates are not verified",
    "not-yet-valid": "a certificate or revocation list that is not valid yet",
    "others-refused": "a dispatch whose policies are all for some users: all others are refused",
    "overlapping-networks": "two clusters whose exported services allow addresses in common",
    "partial-reject": "a policy that rejects requests by name or namespace, while a list of all of them passes",
    "private-key": "a key set that holds a private key",
    "program-not-found": "a program that is not on PATH",
    "readable-secret": "a private key, token file or kubeconfig that every user of the machine can read",
    "shadowed-path": "a default backend of an ingress that is never reached, because something else comes before it",
    "shadowed-policy": "a policy that is never reached, because earlier ones match all that it matches",
    "shadowed-rule": "a create or conflicts rule that is never reached, because earlier ones match all that it matches",
    "shared-accounts": "an API service that gets the accounts of another cluster beside its own",
    "shared-authority": "one authority for client certificates and for the proxies that requestHeader trusts",
    "shared-credentials": "an API service that gets the tokens of its users",
    "shared-set": "an Admin listener that every user of a server may see",
    "shared-system-names": "client certificates whose names beginning with system: count in several clusters",
    "shared-token-review": "tokens that one cluster reviews and that are accepted for other clusters too",
    "system-names": "a user or group beginning with system: that is not accepted",
    "unreachable-server": "a server that no request finds",
    "unreachable-set": "a set of authenticators that no client can use on the server's listeners",
    "unreadable-certificate": "a certificate of a bundle that cannot be read and is skipped",
    "unseen-objects": "a create rule for a cluster from which the aggregate does not read the resource",
    "unusable-token": "a token file, or a line of it, that cannot be used",
    "unused": "an entry that nothing refers to",
    "url-path": "an endpoint whose URL has a path: an API server has its API at the root",
}

_COMMENT = re.compile(r"(?:^|\s)#\s*mcproxy:\s*allow\s+([a-z0-9-]+(?:\s*,\s*[a-z0-9-]+)*)")


def allowed_by(line: str) -> tuple[str, ...]:
    """Return the names of the warnings that the comment of a line disables."""
    match = _COMMENT.search(line)
    return tuple(re.split(r"\s*,\s*", match[1])) if match else ()
