"""The names of the events in the daemon's log, with their levels, their meaning and what an operator does about them.

A name is a stable word to alert on; it changes only with a note in CHANGELOG.md. Each log call has its name as a
literal `event="name"`; a test finds every one of them here, with its level, and the reverse. docs/log-events.md is made
from this table. This module imports nothing of mcproxy.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Event:
    """What one name means.

    `level` is the level of its lines ("warn"), or several ("info, warn"). `todo` is empty where nothing is asked of an
    operator.
    """

    level: str
    meaning: str
    todo: str = ""


_STATE_DIR = "Make `daemon.stateDir` writable for the daemon's user, and see that its disk has space and is sound."
_REPORT = "Report it, with the line and its traceback."
_SEE_LOG = "See the lines of that process before this one."

EVENTS: Mapping[str, Event] = {
    "access_log_incomplete": Event(
        "warn",
        "Lines of an access log could not be written, or were dropped because the disk stalls.",
        "Free space on the disk or repair it, then send SIGUSR1: the file is opened again.",
    ),
    "access_log_not_reopened": Event(
        "warn",
        "After SIGUSR1 an access log could not be opened by its name; lines go on to the file that was open before.",
        "See `cause`. Let the daemon's user create the file (the `create` line of logrotate), and send SIGUSR1 again.",
    ),
    "admin_request_refused": Event(
        "info",
        "An Admin listener refused a request: without a good credential, for what the user may not see, with a `Host` "
        "that is not of this machine, from a web page of another site, or beyond the limit of what it answers at once.",
        "Nothing, unless it should have been answered: `cause` says which it was.",
    ),
    "audit_log_incomplete": Event(
        "error",
        "Events of the audit log were dropped because the queue for its file was full, or could not be written at the "
        "end of the process; `lines` or `queued` says how many.",
        "Free space on the disk or repair it. What was lost is counted in `mcproxy_audit_events_lost_total`.",
    ),
    "audit_log_not_reopened": Event(
        "warn",
        "After SIGUSR1 the audit log could not be opened by its name; events go on to the file that was open before.",
        "See `cause`. Let the daemon's user create the file (the `create` line of logrotate), and send SIGUSR1 again.",
    ),
    "audit_log_unwritable": Event(
        "warn",
        "The audit log cannot be written; events are kept in memory, up to 16 MiB, and nothing is lost yet.",
        "See `cause`. Free space on the disk or repair it.",
    ),
    "audit_log_written_again": Event("info", "The audit log can be written again; what was kept is in it."),
    "authentication_refused": Event(
        "info",
        "A request was answered with 401: its client certificate, token or `X-Remote-*` headers are not accepted.",
        "See `cause`. The client needs a credential that the `authentication` of the server accepts.",
    ),
    "cache_dropped": Event(
        "warn",
        "What was cached of one resource of a member is dropped, since it can no longer be true.",
        "See `cause`; the resource is listed again by itself.",
    ),
    "cache_file_not_removed": Event(
        "warn", "The file of a cache that is no longer kept could not be removed.", _STATE_DIR
    ),
    "cache_not_saved": Event(
        "warn",
        "The cache of one resource of a member could not be saved; after a restart it is listed anew.",
        _STATE_DIR,
    ),
    "client_broke_off": Event(
        "info",
        "A client closed its connection in the middle of a response, or of the body that it sent. Watches, followed"
        " logs and tunnels are not meant.",
    ),
    "client_limit_reached": Event(
        "warn",
        "A client's address has `limits.connectionsPerClient` connections to a listener. Its longest idle one is closed"
        " for a new one; if none is idle, the new one is.",
        "Find the client that leaves connections open, or raise `limits.connectionsPerClient` (many clients behind one"
        " address: use the PROXY protocol).",
    ),
    "client_stalled": Event(
        "info",
        "A client read nothing of a response, or sent nothing of a body, for `limits.stallTimeout`; it was closed.",
        "See the client and its network.",
    ),
    "cluster_replaced": Event(
        "warn",
        "The endpoints of a cluster lead to another cluster than before (the uid of its namespace kube-system changed);"
        " what was cached of it is dropped.",
        "None if the cluster was replaced; else see where its endpoints lead.",
    ),
    "config_error": Event(
        "error", "An error in the configuration file, with file, line, column and key.", "Mend the file, then reload."
    ),
    "config_not_applied": Event(
        "error",
        "A reload read a valid file, but could not apply it (an address in use, a missing file); nothing has changed.",
        "See `cause` and `todo`, then reload again.",
    ),
    "config_reload_failed": Event(
        "error",
        "A reload was refused; the old configuration stays in force. The lines before say why.",
        "Mend what the lines `config_error` and `config_not_applied` before it name, then reload.",
    ),
    "config_reloaded": Event("info", "A reload was applied; the fields count what was added, changed and removed."),
    "config_warning": Event(
        "warn", "The configuration is valid, but something in it is probably not meant.", "See `cause`."
    ),
    "connection_abandoned": Event(
        "debug",
        "A connection ended before its handshake was complete, without a word (a load balancer that looks whether the"
        " port is open, for example).",
    ),
    "connection_send_failed": Event("debug", "A peer has ended a connection while something was sent to it."),
    "connection_tls_failed": Event("debug", "The TLS layer of an open connection failed."),
    "control_connections_limit_reached": Event(
        "warn",
        "The control socket has as many connections as it may have; another one was closed.",
        "Find what keeps `mcproxy status` or other commands waiting (`ss -xp`).",
    ),
    "control_socket_foreign": Event("debug", "The control socket belongs to another user's daemon."),
    "control_socket_gone": Event("debug", "The file of the control socket was removed by somebody else."),
    "control_socket_not_restored": Event(
        "error",
        "After an upgrade that failed, the control socket could not be opened again; clients are served.",
        "Restart mcproxy when it suits: until then reload with SIGHUP, stop with SIGTERM.",
    ),
    "control_user_refused": Event(
        "warn",
        "A user other than root and the daemon's own connected to the control socket and was refused.",
        "Run the command with sudo; if nobody meant to, see who can reach the socket's folder.",
    ),
    "credential_missing": Event("debug", "A request without a credential was answered with 401."),
    "credential_plugin_failed": Event(
        "error",
        "The exec plugin that gets the credential for a cluster failed.",
        "Run its command by hand as the daemon's user, with the environment of the daemon.",
    ),
    "crl_unusable": Event(
        "warn",
        "The revocation list of a client CA is missing, expired or wrong; no certificate of that CA is accepted.",
        "Put the authority's current CRL into the file and reload.",
    ),
    "daemon_ready": Event("info", "The daemon serves."),
    "daemon_start_failed": Event(
        "error", "The daemon could not start and ends.", "See `cause` and `todo`; `mcproxy check` finds most of it."
    ),
    "daemon_stopped": Event("info", "The daemon has stopped; `cut` counts the requests that were cut."),
    "disabled_endpoint_out": Event("info", "A disabled endpoint is not healthy; it gets no requests anyway."),
    "disabled_endpoint_ready": Event(
        "info", "A disabled endpoint is healthy; it gets no requests until it is enabled."
    ),
    "discovery_unreadable": Event(
        "warn",
        "The discovery of a member (which resources it has) cannot be read; the last one stays in use.",
        "See `cause`: the API server must run, and system:discovery be bound to the proxy's user.",
    ),
    "endpoint_disabled": Event("info", "A reload disabled an endpoint: it gets no new requests."),
    "endpoint_enabled": Event("info", "A reload enabled an endpoint."),
    "endpoint_out": Event(
        "warn",
        "An endpoint gets no requests, since its checks or requests fail. It comes back by itself when checks succeed.",
        "See `cause` and `todo`.",
    ),
    "endpoint_ready": Event("info", "An endpoint is healthy and gets requests."),
    "flow_control_limit_reached": Event(
        "warn",
        "Requests are refused with 429 by a flow control; `cause` names it and its figures, the fields who was refused."
        " One line a minute for each server, cluster and policy.",
        "See in the access log who sends so many (reason `flow_control`), or raise the limit.",
    ),
    "foreign_account_refused": Event(
        "info",
        "A service account or node of one cluster asked for another cluster (403). Such accounts are valid in their own"
        " cluster only.",
        "Give the program a credential that is valid for both, for example a client certificate.",
    ),
    "health_check_credential_refused": Event(
        "warn",
        "A cluster refuses the proxy's credential for the health check; its endpoints count as alive.",
        "Grant the credential what `mcproxy rbac` prints for this cluster, or set `healthCheck.path`.",
    ),
    "http2_connection_malformed": Event(
        "info", "An HTTP/2 connection of a client was closed because it broke the protocol.", "See which client it is."
    ),
    "http2_flood": Event(
        "warn",
        "An HTTP/2 connection of a client was closed because it flooded the proxy (resets, pings, settings, …).",
        "See which client it is; if it is a program of yours, see `cause`.",
    ),
    "impersonation_not_permitted": Event(
        "warn",
        "A cluster does not let the proxy impersonate its users; clients get 503.",
        "Grant what `mcproxy rbac --cluster NAME` prints.",
    ),
    "impersonation_refused": Event(
        "info", "A user asked to impersonate another one and may not (403).", "Grant the user the right to impersonate."
    ),
    "internal_error": Event(
        "error", "An unexpected exception: a bug of mcproxy. It goes on as well as it can.", _REPORT
    ),
    "keeper_link_broken": Event(
        "error",
        "A worker and the keeper did not understand each other; their connection is made anew.",
        "Run `mcproxy upgrade` if the program was replaced while it ran; else report it.",
    ),
    "library_message": Event("debug, info, warn, error", "A message of a library that mcproxy uses."),
    "listener_accept_failed": Event(
        "warn",
        "A listener cannot accept connections, for lack of file descriptors or memory; they wait in the kernel.",
        "Raise `LimitNOFILE` in the unit, or lower `limits.connections`.",
    ),
    "listener_limit_reached": Event(
        "warn",
        "A listener has `limits.connections` connections. Idle ones are closed for new ones; if none is idle, new"
        " ones are closed.",
        "Raise `limits.connections` and `LimitNOFILE`, or find the client with most of them.",
    ),
    "listeners_closed": Event("info", "During a shutdown: no new connections are accepted any more."),
    "log_files_reopened": Event("info", "SIGUSR1: the log files are opened again by their names."),
    "log_lines_dropped": Event(
        "warn",
        "Lines of this log were dropped, since standard error is not read fast enough.",
        "Let something read the daemon's standard error.",
    ),
    "member_document_unreadable": Event(
        "warn",
        "A document of a member (version, OpenAPI) cannot be read; the last one stays in use.",
        "See that the proxy's user may read it (`mcproxy rbac` prints its rights), and the API server's log.",
    ),
    "member_not_answering": Event("debug", "A member did not answer when its newest resource version was asked for."),
    "members_disagree": Event(
        "warn",
        "The members of an aggregate have different definitions of a resource; it is served as in one of them.",
        "Install the same definition in all clusters, or name the clusters in `cache.resources`.",
    ),
    "name_not_resolved": Event(
        "warn",
        "The host name of an endpoint, issuer or webhook cannot be looked up; the addresses that it had stay in use.",
        "See `cause`. See that the name servers of /etc/resolv.conf answer (`getent ahosts NAME`), and that it exists.",
    ),
    "name_resolved": Event("info", "A name that could not be looked up has addresses again."),
    "object_left_out": Event(
        "warn",
        "An object of a member cannot be cached and is not in the answers of the aggregate.",
        "See what the cluster's API server sends.",
    ),
    "oidc_keys_unreadable": Event(
        "warn",
        "The file with the keys of an OIDC issuer cannot be used; no token of that issuer is accepted.",
        "Put the issuer's JWK set into the file, then reload.",
    ),
    "openapi_unreadable": Event(
        "warn",
        "The OpenAPI document of an aggregate could not be made, since a member's cannot be read.",
        "See the log of the API server whose document it is.",
    ),
    "orphan_draining": Event("info", "A process without a supervisor ends what it has, since another daemon serves."),
    "orphan_socket_refused": Event(
        "warn",
        "A process whose supervisor has died offered a socket for another address than it said; it is not taken.",
        "If the daemon does not start: end the processes of the one before (`ps -C mcproxy`).",
    ),
    "orphan_sockets_awaited": Event(
        "info", "At start: the sockets of processes whose supervisor has died are asked for."
    ),
    "orphan_sockets_not_taken": Event(
        "warn",
        "A process without a supervisor could not hand its sockets to the daemon that starts.",
        "If the daemon does not start: end this process.",
    ),
    "predecessor_awaited": Event(
        "info", "At start: the daemon that shuts down has the control socket; it is waited for."
    ),
    "predecessor_ended": Event("warn", "During an upgrade the old daemon has ended early; the new one goes on."),
    "process_command_failed": Event(
        "error", "A process could not do what the supervisor asked of it during a shutdown.", _SEE_LOG
    ),
    "process_commit_failed": Event(
        "error", "A process could not swap to the new configuration and is replaced.", _SEE_LOG
    ),
    "process_died": Event(
        "error",
        "A worker or the keeper has ended unexpectedly; it is replaced unless the daemon stops. Its requests are cut.",
        "See `cause`: a kill for lack of memory is in the kernel's log (`journalctl -k`); report a crash.",
    ),
    "process_keeps_config": Event(
        "warn", "A process that is about to end could not take a new configuration; it keeps the one that it has."
    ),
    "process_killed": Event("error", "A process did not end in time during a shutdown and was killed.", _REPORT),
    "process_message_too_long": Event(
        "error", "A process sent a message that is too long; the link is ended.", _REPORT
    ),
    "process_not_reading": Event(
        "error",
        "A process does not read what it is told; the link is ended.",
        "See whether it was stopped, or whether the machine has enough processor time.",
    ),
    "process_ready": Event("info", "A worker or the keeper that replaces another one serves."),
    "process_replaced": Event(
        "info", "Somebody told a worker or the keeper to end (SIGTERM): it is replaced, then ends."
    ),
    "process_retired": Event("info", "A process that was replaced or removed has ended what it had."),
    "process_start_failed": Event(
        "error",
        "A worker or the keeper cannot be started, or cannot serve; it is tried again.",
        "See `cause` and `todo`.",
    ),
    "process_stopped": Event("info", "A process without a supervisor has stopped."),
    "process_unresponsive": Event(
        "error",
        "A process did not answer the supervisor and was killed; it is replaced.",
        "If nobody stopped it, see whether the machine has enough memory and processor time.",
    ),
    "program_versions_differ": Event(
        "error",
        "The program was replaced on the disk under a running daemon, so its processes have different versions.",
        "Run `mcproxy upgrade`, which replaces all of it.",
    ),
    "proxy_header_missing": Event(
        "info",
        "A connection from an address in `proxyProtocol.from` did not begin with a valid PROXY header and was closed.",
        "Let the load balancer send one (send-proxy-v2), or take its address out of `proxyProtocol.from`.",
    ),
    "reflector_out": Event(
        "warn",
        "A resource of a member is not followed: the aggregate answers from what it last knew of it.",
        "See `cause` and `todo`.",
    ),
    "reflector_ready": Event("info", "A resource of a member is followed again."),
    "replica_limits_differ": Event(
        "warn",
        "Replicas share a limit (`shared: true`), but have different numbers for it.",
        "Give all replicas the same configuration.",
    ),
    "request_forbidden": Event(
        "info",
        "A request was refused with 403: the authorization of the server, or its dispatch policies, do not allow it, or"
        " it is of a web page of another origin.",
        "None if it is not to be allowed; else see `todo`.",
    ),
    "request_malformed": Event(
        "info",
        "A request of a client broke the protocol, or its path or headers are ambiguous; it was refused.",
        "See which client it is, and `cause`.",
    ),
    "resource_left_out": Event(
        "warn",
        "A resource is left out of a member, since its kind or scope is not that of the first member.",
        "Serve the same definition in all members, or limit the resource with `clusters`.",
    ),
    "resource_unknown": Event(
        "warn",
        "`cache.resources` names a resource that no member has.",
        "None if its definition is still to come; else compare the entry with `kubectl api-resources`.",
    ),
    "response_broken": Event(
        "warn",
        "An endpoint broke off a response that had begun; the client's connection was closed, so that it does not take"
        " the part for the whole.",
        "See that API server's log, and what is between it and the proxy (idle timeouts of load balancers).",
    ),
    "reviewer_out": Event(
        "warn",
        "Tokens or rights cannot be checked now (a cluster's reviews, or an issuer's keys); `effect` says"
        " what clients get.",
        "See `cause` and `todo`.",
    ),
    "reviewer_ready": Event("info", "A reviewer or issuer that failed works again."),
    "right_missing": Event(
        "warn",
        "A cluster does not grant the proxy a right that the configuration needs; `purpose` says for what.",
        "Grant what `mcproxy rbac --cluster NAME` prints, then reload.",
    ),
    "rights_check_failed": Event(
        "warn", "The rights of the proxy in a cluster could not be checked.", "See `cause` and `todo`, then reload."
    ),
    "rights_complete": Event("info", "A cluster that lacked rights of the proxy grants all of them now."),
    "shared_state_away": Event(
        "error",
        "Redis cannot be reached: limits over replicas are divided equally among those last seen.",
        "See `cause` and `todo`.",
    ),
    "shared_state_back": Event("info", "Redis answers again: limits over replicas are exact."),
    "shutdown_forced": Event("warn", "A second signal: the daemon ends at once and cuts what is open."),
    "shutdown_started": Event("info", "The daemon begins to stop; `open` counts what it waits for."),
    "socket_not_restored": Event(
        "error",
        "After an upgrade that failed, a listening socket has not the settings that it had.",
        "Restart mcproxy when it suits.",
    ),
    "socket_permissions_failed": Event(
        "error",
        "After a reload that failed, a unix socket has not the permissions that it had.",
        "See `todo`, then reload.",
    ),
    "spans_not_exported": Event(
        "warn",
        "The collector does not take the spans of requests; those that its queue cannot hold are lost.",
        "See `cause`, and that the collector runs and takes OTLP over HTTP at `endpoint`.",
    ),
    "state_file_broken": Event(
        "warn",
        "A saved state file cannot be used and was put aside as `.broken`; its contents are asked for again.",
        "Remove the `.broken` file; see that the disk of `daemon.stateDir` is sound.",
    ),
    "state_not_saved": Event(
        "warn", "The state of aggregates could not be saved; after a restart the last one that was is used.", _STATE_DIR
    ),
    "streams_limit_reached": Event(
        "warn",
        "A client opened more requests on one HTTP/2 connection than `limits.streams`; those beyond are refused.",
        "See what the client is: it does not keep to the number that it was told. Or raise `limits.streams`.",
    ),
    "supervisor_died": Event(
        "error",
        "The supervisor has died. Its processes serve on until another daemon is started.",
        "Start mcproxy again: it takes over. Report a crash.",
    ),
    "supervisor_silent": Event(
        "warn",
        "A process hears nothing from the supervisor and checks the endpoints for itself.",
        "See what stops the supervisor, or whether the machine is overloaded.",
    ),
    "systemd_not_notified": Event("warn", "A change of state could not be told to systemd.", "See `cause`."),
    "takeover_cancelled": Event(
        "error", "During an upgrade the old daemon decided to go on; the new one ends.", "See the old daemon's lines."
    ),
    "tls_handshake_failed": Event(
        "info",
        "A client and a listener could not agree on TLS, or the client rejects the listener's certificate.",
        "See `cause` and `todo`.",
    ),
    "token_file_unusable": Event(
        "warn",
        "The file with the proxy's token for a cluster cannot be used; the last token stays in use.",
        "Make the file readable for the daemon's user and put one token into it.",
    ),
    "token_refused": Event(
        "info",
        "A bearer token was refused (401); `cause` has the reason of each authenticator.",
        "The client needs a valid token; compare `cause` with the `authentication` of the server.",
    ),
    "tracing_started": Event("info", "Requests are traced: their spans go to `endpoint`."),
    "tracing_unavailable": Event(
        "warn",
        "The environment asks for spans (`OTEL_EXPORTER_OTLP_ENDPOINT`), but requests are not traced.",
        "See `cause`: install `mcproxy[otel]`, or correct or unset the variables that begin with `OTEL_`.",
    ),
    "upgrade_draining": Event("info", "The daemon was replaced by a new one and ends what it has."),
    "upgrade_failed": Event(
        "error",
        "`mcproxy upgrade` or SIGUSR2 did not replace the daemon; it goes on unchanged.",
        "See `cause` and `todo`.",
    ),
    "upgrade_process_left": Event(
        "error",
        "After an upgrade that failed, a process of the new program could not be ended.",
        "End it by hand (`ps -C mcproxy`), and install mcproxy again.",
    ),
    "upgrade_refused": Event(
        "error", "An upgrade was requested while another one is under way.", "Wait for the outcome of the first."
    ),
    "upgrade_started": Event("info", "The program is started anew, to replace this daemon."),
    "upstream_credential_refused": Event(
        "warn",
        "A cluster answered a client's request with 401: it does not accept the proxy's own credential.",
        "Give the cluster a valid credential, in `credentials` or `frontProxy`.",
    ),
    "upstream_http2_ended": Event(
        "warn",
        "An HTTP/2 connection to an endpoint was ended because the endpoint broke the protocol.",
        "See what answers there, and the network between; `connections.protocol: HTTP1` avoids HTTP/2.",
    ),
    "upstream_no_answer": Event(
        "warn",
        "An endpoint broke off, or did not answer a request that had been sent; the client got 502, 503 or 504.",
        "See that API server's log.",
    ),
    "upstream_slow": Event(
        "warn",
        "An endpoint took more than 5 s to begin a response that is not long-running. One line a minute for each"
        " endpoint.",
        "See whether that API server, or its etcd, is overloaded; the line has the URI and the user.",
    ),
    "worker_socket_missing": Event(
        "error", "A worker has no listening socket of its own, for lack of memory.", "Restart mcproxy."
    ),
}
