"""The names of the events in the daemon's log, with their levels, meanings and remedies.

A name is a stable word for alerts; it changes only with a note in CHANGELOG.md. Each log call has its name as a literal
`event="name"`. A test checks that this table has all these names with their levels, and no others. docs/log-events.md
is generated from it. This module does not import other modules of mcproxy.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LogEvent:
    """The meaning of an event name.

    `level` is the level of its lines ("warn"), or several levels ("info, warn"). `todo` is empty if the operator need
    not do anything. `todo_in_line`: each line of the event contains `todo` as the remedy.
    """

    level: str
    meaning: str
    todo: str = ""
    todo_in_line: bool = False

    @property
    def line_todo(self) -> str:
        """The remedy in the form of a log line."""
        return self.todo[0].lower() + self.todo[1:].removesuffix(".")


_STATE_DIR = "Make `daemon.stateDir` writable for the daemon's user, and see that its disk has space and is sound."
_REPORT = "Report it, with the line and its traceback."
_SEE_LOG = "See the lines of that process before this one."

EVENTS: Mapping[str, LogEvent] = {
    "access_log_incomplete": LogEvent(
        "warn",
        "Lines of an access log could not be written, or were dropped because the disk stalls.",
        "Free space on the disk or repair it, then send SIGUSR1: the file is opened again.",
    ),
    "access_log_not_reopened": LogEvent(
        "warn",
        "After SIGUSR1 an access log could not be opened by its name; lines are still written to the file that "
        "was open before.",
        "See `cause`. Let the daemon's user create the file (the `create` line of logrotate), and send SIGUSR1 again.",
    ),
    "admin_request_refused": LogEvent(
        "info",
        "An Admin listener refused a request: without a valid credential, for data that the user may not see, "
        "with a `Host` that is not of this machine, from a web page of another site, or beyond its limit of parallel "
        "answers.",
        "Nothing, unless it should have been answered: `cause` says why it was refused.",
    ),
    "api_service_available": LogEvent("info", "An API service is available again; its requests pass."),
    "api_service_discovery_unreadable": LogEvent(
        "warn",
        "The discovery of an API server of `apiServices` cannot be read; its group-versions are shown as Stale.",
        "See `cause`: the API server must run, and let the proxy read /apis.",
    ),
    "api_service_hides_backend": LogEvent(
        "warn",
        "A group-version of `apiServices` is one that the backend serves itself: the backend's objects are hidden.",
        "None if intended; else remove it from `apiServices`.",
    ),
    "api_service_unavailable": LogEvent(
        "warn",
        "The probes of an API service fail: its requests get 503 until one succeeds.",
        "See `cause` and `todo`.",
    ),
    "audit_log_incomplete": LogEvent(
        "error",
        "Events of the audit log were dropped because the queue for its file was full, or could not be written at the "
        "end of the process; `lines` or `queued` says how many.",
        "Free space on the disk or repair it. What was lost is counted in `mcproxy_audit_events_lost_total`.",
    ),
    "audit_log_not_reopened": LogEvent(
        "warn",
        "After SIGUSR1 the audit log could not be opened by its name; events are still written to the file that "
        "was open before.",
        "See `cause`. Let the daemon's user create the file (the `create` line of logrotate), and send SIGUSR1 again.",
    ),
    "audit_log_unwritable": LogEvent(
        "warn",
        "The audit log cannot be written; events are kept in memory, up to 16 MiB, and nothing is lost yet.",
        "See `cause`. Free space on the disk or repair it.",
    ),
    "audit_log_written_again": LogEvent("info", "The audit log can be written again; what was kept is in it."),
    "authentication_refused": LogEvent(
        "info",
        "A request was answered with 401: its client certificate, token or `X-Remote-*` headers are not accepted.",
        "See `cause`. The client needs a credential that the `authentication` of the server accepts.",
    ),
    "backend_endpoints": LogEvent(
        "warn",
        "A backend of an ingress has no endpoints in a cluster, or fewer than the cluster reports: its port or Service "
        "does not exist, its addresses are not allowed, its EndpointSlices cannot be read or are too many.",
        "See `cause`: the Service and its EndpointSlices in that cluster, and the backend in the configuration.",
    ),
    "cache_dropped": LogEvent(
        "warn",
        "The cache of one resource of a member was dropped because it is no longer valid.",
        "See `cause`; the resource is listed again automatically.",
    ),
    "cache_file_not_removed": LogEvent(
        "warn", "The file of a cache that is no longer kept could not be removed.", _STATE_DIR
    ),
    "cache_not_saved": LogEvent(
        "warn",
        "The cache of one resource of a member could not be saved; after a restart it is listed again.",
        _STATE_DIR,
    ),
    "certificate_files_unusable": LogEvent(
        "warn",
        "The files of a certificate were changed, but are not a usable pair; the former one stays in use.",
        "Put a certificate and its key there that the daemon's user can read.",
        todo_in_line=True,
    ),
    "certificates_renewed": LogEvent(
        "info",
        "Certificates were replaced on disk and are used without a reload; `entries` are their keys in the file.",
    ),
    "client_broke_off": LogEvent(
        "info",
        "A client closed its connection in the middle of a response, or of the body that it sent. Watches, followed"
        " logs and tunnels do not count.",
    ),
    "client_limit_reached": LogEvent(
        "warn",
        "A client's address has `limits.connectionsPerClient` connections to a listener. Its longest idle one is closed"
        " for a new one; if none is idle, the new one is.",
        "Find the client that leaves connections open, or raise `limits.connectionsPerClient` (many clients behind one"
        " address: use the PROXY protocol).",
    ),
    "client_stalled": LogEvent(
        "info",
        "A client read nothing of a response, or sent nothing of a body, for `limits.stallTimeout`; it was closed.",
        "See the client and its network.",
    ),
    "cluster_id_refused": LogEvent(
        "warn",
        "The id that a cluster claims in its clusterset, by the ClusterProperty `cluster.clusterset.k8s.io`, is not "
        "used: it has its name in the configuration instead.",
        "See `cause` and `todo`.",
    ),
    "cluster_last_resort": LogEvent(
        "warn",
        "All endpoints of a cluster fail their checks. Requests try those that were ready and to which no connection "
        "has failed since, at most four at a time until one answers. One line for each outage.",
        "See `cause`: the API server is overloaded, or the checks ask for the wrong thing (`healthCheck`).",
    ),
    "cluster_replaced": LogEvent(
        "warn",
        "The endpoints of a cluster lead to another cluster than before (the uid of its namespace kube-system changed);"
        " its caches are dropped.",
        "None if the cluster was replaced; else check the addresses of its endpoints.",
        todo_in_line=True,
    ),
    "clustersets_differ": LogEvent(
        "warn",
        "Clusters of `serviceDiscovery` say by the ClusterProperty `clusterset.k8s.io` that they are members of "
        "different clustersets. The configuration decides: services are imported by all of them.",
        "See `cause` and `todo`.",
    ),
    "config_error": LogEvent(
        "error",
        "An error in the configuration file, with file, line, column and key.",
        "Correct the file, then reload.",
    ),
    "config_not_applied": LogEvent(
        "error",
        "A reload read a valid file, but could not apply it (an address in use, a missing file); nothing has changed.",
        "See `cause` and `todo`, then reload again.",
    ),
    "config_reload_failed": LogEvent(
        "error",
        "A reload was refused; the old configuration stays in force. The lines before say why.",
        "Correct what the lines `config_error` and `config_not_applied` before it name, then reload.",
    ),
    "config_reloaded": LogEvent("info", "A reload was applied; the fields count what was added, changed and removed."),
    "config_warning": LogEvent(
        "warn", "The configuration is valid, but something in it is probably not meant.", "See `cause`."
    ),
    "connection_abandoned": LogEvent(
        "debug",
        "A connection ended before its handshake was complete, without data (for example a load balancer's check"
        " whether the port is open).",
    ),
    "connection_send_failed": LogEvent("debug", "A peer closed a connection while data was sent to it."),
    "connection_tls_failed": LogEvent("debug", "The TLS layer of an open connection failed."),
    "control_connections_limit_reached": LogEvent(
        "warn",
        "The control socket has its maximum number of connections; another one was closed.",
        "Find what keeps `mcproxy status` or other commands waiting (`ss -xp`).",
    ),
    "control_socket_foreign": LogEvent("debug", "The control socket belongs to another user's daemon."),
    "control_socket_gone": LogEvent("debug", "The file of the control socket was removed by another program."),
    "control_socket_missing": LogEvent(
        "warn",
        "No control socket is configured, and the default one could not be opened; clients are served.",
        "Let the daemon's user write in /run/mcproxy, or name a `daemon.controlSocket`; until then reload with SIGHUP.",
    ),
    "control_socket_not_restored": LogEvent(
        "error",
        "After an upgrade that failed, the control socket could not be opened again; clients are served.",
        "Restart mcproxy when convenient; until then reload with SIGHUP, stop with SIGTERM.",
    ),
    "control_user_refused": LogEvent(
        "warn",
        "A user other than root and the daemon's own connected to the control socket and was refused.",
        "Run the command with sudo; if that was not intended, see who can reach the socket's folder.",
    ),
    "credential_missing": LogEvent("debug", "A request without a credential was answered with 401."),
    "credential_plugin_failed": LogEvent(
        "error",
        "The exec plugin that gets the credential for a cluster failed.",
        "Run its command by hand as the daemon's user, with the environment of the daemon.",
    ),
    "crl_unusable": LogEvent(
        "warn",
        "The revocation list of a client CA is missing, expired or invalid; all certificates of that CA are refused.",
        "Put the authority's current CRL into the file and reload.",
        todo_in_line=True,
    ),
    "daemon_ready": LogEvent("info", "The daemon serves."),
    "daemon_start_failed": LogEvent(
        "error", "The daemon could not start and ends.", "See `cause` and `todo`; `mcproxy check` finds most of it."
    ),
    "daemon_stopped": LogEvent("info", "The daemon has stopped; `cut` counts the requests that were cut."),
    "disabled_endpoint_out": LogEvent("info", "A disabled endpoint is not healthy; it gets no requests anyway."),
    "disabled_endpoint_ready": LogEvent(
        "info", "A disabled endpoint is healthy; it gets no requests until it is enabled."
    ),
    "discovery_unreadable": LogEvent(
        "warn",
        "The discovery of a member (which resources it has) cannot be read; the last one stays in use.",
        "See `cause`: the API server must run, and system:discovery be bound to the proxy's user.",
    ),
    "endpoint_disabled": LogEvent("info", "A reload disabled an endpoint: it gets no new requests."),
    "endpoint_enabled": LogEvent("info", "A reload enabled an endpoint."),
    "endpoint_out": LogEvent(
        "warn",
        "An endpoint gets no requests because its checks or requests fail. It returns when its checks succeed.",
        "See `cause` and `todo`.",
    ),
    "endpoint_ready": LogEvent("info", "An endpoint is healthy and gets requests."),
    "export_namespace_created": LogEvent(
        "info", "A namespace was created in a cluster that imports services, as `createNamespaces` says."
    ),
    "export_problem": LogEvent(
        "warn",
        "A service is not exported as `serviceExports`, or a ServiceExport, says: `reason` and `cause` say why, "
        "`cluster` where. Logged once, when it begins.",
        "See `cause`.",
    ),
    "export_write_refused": LogEvent(
        "warn",
        "A cluster refuses an object of an exported service. The write is retried with back-off, or, where another "
        "field manager has set a field, when one of the two changes; at most one line a minute for each namespace.",
        "See `cause` and `todo`.",
    ),
    "flow_control_limit_reached": LogEvent(
        "warn",
        "Requests are refused with 429 by a flow control; `cause` names it and its figures, the fields the refused"
        " client. One line a minute for each server, cluster and policy.",
        "Find the sender in the access log (reason `flow_control`), or raise the limit.",
    ),
    "foreign_account_refused": LogEvent(
        "info",
        "A service account or node of one cluster sent a request for another one (403). Such accounts are valid in"
        " their own cluster only.",
        "Give the program a credential that is valid for both, for example a client certificate.",
    ),
    "health_check_credential_refused": LogEvent(
        "warn",
        "A cluster refuses the proxy's credential for the health check; its endpoints count as alive.",
        "Grant the credential what `mcproxy rbac` prints for this cluster, or set `healthCheck.path`.",
    ),
    "http2_connection_malformed": LogEvent(
        "info", "An HTTP/2 connection of a client was closed because it broke the protocol.", "See which client it is."
    ),
    "http2_flood": LogEvent(
        "warn",
        "An HTTP/2 connection of a client was closed because it flooded the proxy (resets, pings, settings, …).",
        "See which client it is; if it is a program of yours, see `cause`.",
    ),
    "impersonation_not_permitted": LogEvent(
        "warn",
        "A cluster does not allow the proxy to impersonate users; clients get 503.",
        "Grant what `mcproxy rbac --cluster NAME` prints.",
    ),
    "impersonation_refused": LogEvent(
        "info", "A user asked to impersonate another one and may not (403).", "Grant the user the right to impersonate."
    ),
    "ingress_endpoint_back": LogEvent("info", "An endpoint of an ingress's service answers its health checks again."),
    "ingress_endpoint_out": LogEvent(
        "warn",
        "An endpoint of an ingress's service failed (no connection, or no valid answers) and gets no requests for 1 to "
        "30 s, or its `healthCheck` fails; if all of a service are out, all are used.",
        "Nothing if the pod was just ending; else see that pod, and whether its address can be reached from the proxy.",
    ),
    "ingress_forward_broken": LogEvent(
        "warn",
        "With `via: PortForward` a connection to a pod broke: nothing listens on its port, or the API server sent "
        "something other than a port-forward. One line a minute for each pod.",
        "Nothing if the pod was just ending; else see whether it listens on that port, on localhost too.",
    ),
    "ingress_no_answer": LogEvent(
        "warn",
        "A request to an ingress got no answer from the service (502, 503, 504), or with `via: APIServer` one from the "
        "API server itself, of which the client gets only the status. One line a minute for each endpoint.",
        "See the log of that pod, and whether pod addresses can be reached from the proxy.",
    ),
    "ingress_no_endpoint": LogEvent(
        "warn",
        "A request to an ingress was refused, because the service has no endpoint in any of its clusters (503), or "
        "none of them has it (500). One line a minute for each service.",
        "See `mcproxy status`: whether the service has ready pods, and whether its clusters can be reached.",
    ),
    "internal_error": LogEvent(
        "error", "An unexpected exception: a bug in mcproxy, which continues as far as possible.", _REPORT
    ),
    "keeper_link_broken": LogEvent(
        "error",
        "A worker and the keeper could not parse each other's messages; they connect again.",
        "Run `mcproxy upgrade` if the program was replaced while it ran; else report it.",
    ),
    "lease_acquired": LogEvent("info", "This process holds the Lease of a cluster and writes exported services there."),
    "lease_available": LogEvent("info", "The Lease of a cluster can be read and written again."),
    "lease_lost": LogEvent(
        "warn",
        "This process no longer writes to a cluster: it could not renew its Lease for 10 s, or another replica has it "
        "(`holder`).",
        "None if another replica took over; else see `cause` and `lease_unavailable`.",
    ),
    "lease_released": LogEvent("info", "At a shutdown or a reload: the Lease of a cluster is free for other replicas."),
    "lease_unavailable": LogEvent(
        "warn",
        "The Lease of a cluster that services are exported to cannot be read or written; nothing is written to the "
        "cluster without it. Existing objects stay.",
        "See `cause` and `todo`.",
    ),
    "library_message": LogEvent("debug, info, warn, error", "A message of a library that mcproxy uses."),
    "listener_accept_failed": LogEvent(
        "warn",
        "A listener cannot accept connections, for lack of file descriptors or memory; they wait in the kernel.",
        "Raise `LimitNOFILE` in the unit, or lower `limits.connections`.",
    ),
    "listener_limit_reached": LogEvent(
        "warn",
        "A listener has `limits.connections` connections. Idle ones are closed for new ones; if none is idle, new"
        " ones are closed.",
        "Raise `limits.connections` and `LimitNOFILE`, or find the client with most of them.",
    ),
    "listeners_closed": LogEvent("info", "During a shutdown: no new connections are accepted any more."),
    "log_files_reopened": LogEvent("info", "SIGUSR1: the log files are opened again by their names."),
    "log_lines_dropped": LogEvent(
        "warn",
        "Lines of this log were dropped, since standard error is not read fast enough.",
        "Let something read the daemon's standard error.",
    ),
    "member_document_unreadable": LogEvent(
        "warn",
        "A document of a member (version, OpenAPI) cannot be read; the last one stays in use.",
        "See that the proxy's user may read it (`mcproxy rbac` prints its rights), and the API server's log.",
        todo_in_line=True,
    ),
    "member_not_answering": LogEvent("debug", "A member did not answer a request for its newest resource version."),
    "members_disagree": LogEvent(
        "warn",
        "The members of an aggregate have different definitions of a resource; it is served as in one of them.",
        "Install the same definition in all clusters, or name the clusters in `cache.resources`.",
        todo_in_line=True,
    ),
    "name_not_resolved": LogEvent(
        "warn",
        "The host name of an endpoint, issuer or webhook cannot be resolved; its previous addresses stay in use.",
        "See `cause`. See that the name servers of /etc/resolv.conf answer (`getent ahosts NAME`), and that it exists.",
    ),
    "name_resolved": LogEvent("info", "A name that could not be resolved has addresses again."),
    "object_left_out": LogEvent(
        "warn",
        "An object of a member cannot be cached and is not in the answers of the aggregate.",
        "See what the cluster's API server sends.",
        todo_in_line=True,
    ),
    "oidc_keys_unreadable": LogEvent(
        "warn",
        "The file with the keys of an OIDC issuer cannot be used; no token of that issuer is accepted.",
        "Put the issuer's JWK set into the file, then reload.",
    ),
    "openapi_too_large": LogEvent(
        "warn",
        "The OpenAPI v2 documents of all API services are too large together: this one's is left out.",
        "See what the API server publishes. Clients with OpenAPI v3 have its document nevertheless.",
    ),
    "openapi_unreadable": LogEvent(
        "warn",
        "The OpenAPI document of an aggregate could not be made, since a member's cannot be read.",
        "See the log of the API server whose document it is.",
        todo_in_line=True,
    ),
    "pod_http2_ended": LogEvent(
        "warn",
        "An HTTP/2 connection to a pod of an ingress was ended because the pod broke the protocol.",
        "See whether it supports HTTP/2 on that port; else `protocol: HTTP1` of the backend, or another appProtocol of"
        " the Service's port.",
    ),
    "predecessor_awaited": LogEvent(
        "info", "At start: waiting for the previous daemon, which still has the control socket, to shut down."
    ),
    "predecessor_ended": LogEvent("warn", "During an upgrade the old daemon ended early; the new one continues."),
    "process_command_failed": LogEvent(
        "error", "A process failed a command of the supervisor during a shutdown.", _SEE_LOG
    ),
    "process_commit_failed": LogEvent(
        "error", "A process could not apply the new configuration and is replaced.", _SEE_LOG
    ),
    "process_died": LogEvent(
        "error",
        "A worker or the keeper has ended unexpectedly; it is replaced unless the daemon stops. Its requests are cut.",
        "See `cause`: a kill for lack of memory is in the kernel's log (`journalctl -k`); report a crash.",
    ),
    "process_keeps_config": LogEvent(
        "warn", "A process that is ending could not apply a new configuration and keeps its own."
    ),
    "process_killed": LogEvent("error", "A process did not end in time during a shutdown and was killed.", _REPORT),
    "process_message_too_long": LogEvent(
        "error", "A process sent a message that is too long; the link is closed.", _REPORT
    ),
    "process_not_reading": LogEvent(
        "error",
        "A process does not read the supervisor's messages; the link is closed.",
        "See whether it was stopped, or whether the machine has enough processor time.",
    ),
    "process_ready": LogEvent("info", "A worker or the keeper that replaces another one is ready."),
    "process_replaced": LogEvent("info", "A worker or the keeper received SIGTERM: it is replaced, then ends."),
    "process_retired": LogEvent("info", "A process that was replaced or removed has finished its requests and ended."),
    "process_start_failed": LogEvent(
        "error",
        "A worker or the keeper cannot be started, or cannot serve; the start is retried.",
        "See `cause` and `todo`.",
    ),
    "process_stopped": LogEvent("info", "A process without a supervisor has stopped."),
    "process_unresponsive": LogEvent(
        "error",
        "A process did not answer the supervisor and was killed; it is replaced.",
        "If nobody stopped it, see whether the machine has enough memory and processor time.",
        todo_in_line=True,
    ),
    "program_versions_differ": LogEvent(
        "error",
        "The program was replaced on the disk under a running daemon, so its processes have different versions.",
        "Run `mcproxy upgrade`, which replaces all of it.",
        todo_in_line=True,
    ),
    "proxy_header_missing": LogEvent(
        "info",
        "A connection from an address in `proxyProtocol.from` did not begin with a valid PROXY header and was closed.",
        "Let the load balancer send one (send-proxy-v2), or take its address out of `proxyProtocol.from`.",
    ),
    "reflector_out": LogEvent(
        "warn",
        "A resource of a member cannot be watched: the aggregate answers from its last known state.",
        "See `cause` and `todo`.",
    ),
    "reflector_ready": LogEvent("info", "A resource of a member is watched again."),
    "replica_limits_differ": LogEvent(
        "warn",
        "Replicas share a limit (`shared: true`), but have different numbers for it.",
        "Give all replicas the same configuration.",
    ),
    "request_forbidden": LogEvent(
        "info",
        "A request was refused with 403: the authorization of the server, or its dispatch policies, do not allow it, or"
        " it is of a web page of another origin.",
        "None if the refusal is intended; else see `todo`.",
    ),
    "request_malformed": LogEvent(
        "info",
        "A request of a client broke the protocol, or its path or headers are ambiguous; it was refused.",
        "See which client it is, and `cause`.",
    ),
    "resource_left_out": LogEvent(
        "warn",
        "A resource is left out of a member, since its kind or scope is not that of the first member.",
        "Serve the same definition in all members, or limit the resource with `clusters`.",
        todo_in_line=True,
    ),
    "resource_unknown": LogEvent(
        "warn",
        "`cache.resources` names a resource that no member has.",
        "None if its definition is still to come; else compare the entry with `kubectl api-resources`.",
        todo_in_line=True,
    ),
    "response_broken": LogEvent(
        "warn",
        "An endpoint broke off a response; the client's connection was closed so that the client cannot mistake the"
        " part for the whole.",
        "See that API server's log, and what is between it and the proxy (idle timeouts of load balancers).",
    ),
    "reviewer_out": LogEvent(
        "warn",
        "An authentication or authorization backend (a cluster's reviews, a webhook, an issuer's keys) is unavailable;"
        " `effect` says what clients get.",
        "See `cause` and `todo`.",
    ),
    "reviewer_ready": LogEvent("info", "An authentication or authorization backend is available again."),
    "right_missing": LogEvent(
        "warn",
        "A cluster does not grant the proxy a right that the configuration needs; `purpose` says for what.",
        "Grant what `mcproxy rbac --cluster NAME` prints, then reload.",
    ),
    "rights_check_failed": LogEvent(
        "warn", "The rights of the proxy in a cluster could not be checked.", "See `cause` and `todo`, then reload."
    ),
    "rights_complete": LogEvent("info", "A cluster that lacked rights of the proxy grants all of them now."),
    "shared_state_away": LogEvent(
        "error",
        "Redis cannot be reached: limits over replicas are divided equally among those last seen.",
        "See `cause` and `todo`.",
    ),
    "shared_state_back": LogEvent("info", "Redis answers again: limits over replicas are exact."),
    "shutdown_forced": LogEvent("warn", "A second signal: the daemon stops at once and cuts open requests."),
    "shutdown_started": LogEvent("info", "The daemon begins to stop; `open` counts the requests that it waits for."),
    "socket_not_restored": LogEvent(
        "error",
        "After a failed upgrade, the settings of a listening socket could not be restored.",
        "Restart mcproxy when convenient.",
    ),
    "socket_permissions_failed": LogEvent(
        "error",
        "After a failed reload, the permissions of a unix socket could not be restored.",
        "See `todo`, then reload.",
    ),
    "spans_not_exported": LogEvent(
        "warn",
        "The collector does not accept spans; those that do not fit in the queue are lost.",
        "See `cause`, and that the collector runs and accepts OTLP over HTTP at `endpoint`.",
    ),
    "state_file_broken": LogEvent(
        "warn",
        "A saved state file is unusable and was set aside as `.broken`; its contents are fetched again.",
        "Remove the `.broken` file; see that the disk of `daemon.stateDir` is sound.",
    ),
    "state_not_saved": LogEvent(
        "warn", "The state of aggregates could not be saved; after a restart the last saved one is used.", _STATE_DIR
    ),
    "streams_limit_reached": LogEvent(
        "warn",
        "A client opened more requests on one HTTP/2 connection than `limits.streams`; those beyond are refused.",
        "Identify the client, which ignores the announced maximum, or raise `limits.streams`.",
    ),
    "supervisor_died": LogEvent(
        "error",
        "The supervisor died. Its processes end, within a few seconds.",
        "Start mcproxy again. Report a crash.",
    ),
    "supervisor_silent": LogEvent(
        "warn",
        "A process receives nothing from the supervisor and checks the endpoints itself.",
        "See what stops the supervisor, or whether the machine is overloaded.",
        todo_in_line=True,
    ),
    "systemd_not_notified": LogEvent("warn", "A change of state could not be sent to systemd.", "See `cause`."),
    "takeover_cancelled": LogEvent(
        "error",
        "During an upgrade the old daemon decided to continue; the new one ends.",
        "See the old daemon's lines.",
    ),
    "tls_handshake_failed": LogEvent(
        "info",
        "A client and a listener failed the TLS handshake, or the client rejects the listener's certificate.",
        "See `cause` and `todo`.",
    ),
    "token_file_unusable": LogEvent(
        "warn",
        "The file with the proxy's token for a cluster cannot be used; the last token stays in use.",
        "Make the file readable for the daemon's user and put one token into it.",
        todo_in_line=True,
    ),
    "token_refused": LogEvent(
        "info",
        "A bearer token was refused (401); `cause` has the reason of each authenticator.",
        "The client needs a valid token; compare `cause` with the `authentication` of the server.",
    ),
    "tracing_started": LogEvent("info", "Requests are traced: their spans go to `endpoint`."),
    "tracing_unavailable": LogEvent(
        "warn",
        "The environment enables spans (`OTEL_EXPORTER_OTLP_ENDPOINT`), but requests are not traced.",
        "See `cause`: install `requirements/all.lock`, or correct or unset the variables that begin with `OTEL_`.",
    ),
    "tunnel_dial_failed": LogEvent(
        "warn",
        "At the edge: a hub cannot be dialled, and is dialled again. At the hub: an edge that is connected could not "
        "open a connection for requests.",
        "See `cause` and `todo`. At the hub, `cause` is what the edge reports; a firewall or HTTP proxy may limit its "
        "connections.",
        todo_in_line=True,
    ),
    "tunnel_down": LogEvent(
        "warn",
        "The last control connection of a tunnel has ended after `age` seconds. At the hub its endpoint is out; open "
        "requests go on.",
        "Nothing if `tunnel_up` follows: the edge dials again by itself. Else see the log of the other end, and the "
        "network between.",
        todo_in_line=True,
    ),
    "tunnel_name_taken": LogEvent(
        "warn",
        "Two edges want the same tunnel; the first one, which answers, keeps it. Both ends have this line.",
        "Give each edge daemon a tunnel of its own (`listeners[].dial.tunnel`), and end a former edge.",
        todo_in_line=True,
    ),
    "tunnel_partial": LogEvent(
        "warn",
        "An edge is connected to some of its hubs only: clients of the others do not reach the site.",
        "See `cause`, these hubs, and the network to them; they are dialled again by themselves.",
        todo_in_line=True,
    ),
    "tunnel_refused": LogEvent(
        "warn",
        "A hub refused a tunnel or a connection of one. Both ends have this line.",
        "See `cause`. The user of the edge's credential must be among the `users` of the tunnel, and the server must "
        "have the tunnel in its `backend`.",
    ),
    "tunnel_up": LogEvent("info", "A tunnel is connected; `peer` is the edge, or at the edge the hub."),
    "unread_bodies_limit_reached": LogEvent(
        "warn",
        "The unread request bodies of all connections reached their limit; requests are refused (503).",
        "Find what they wait for (a slow authentication backend, a flow control that queues), and who sends them.",
    ),
    "upgrade_draining": LogEvent("info", "The daemon was replaced by a new one and finishes its open requests."),
    "upgrade_failed": LogEvent(
        "error",
        "`mcproxy upgrade` or SIGUSR2 did not replace the daemon, which continues unchanged.",
        "See `cause` and `todo`.",
    ),
    "upgrade_process_left": LogEvent(
        "error",
        "After an upgrade that failed, a process of the new program could not be ended.",
        "End it by hand (`ps -C mcproxy`), and install mcproxy again.",
    ),
    "upgrade_refused": LogEvent(
        "error", "An upgrade was requested while another one is under way.", "Wait for the outcome of the first."
    ),
    "upgrade_started": LogEvent("info", "The new program is started to replace this daemon."),
    "upstream_credential_refused": LogEvent(
        "warn",
        "A cluster answered a client's request with 401: it does not accept the proxy's own credential.",
        "Give the cluster a valid credential, in `credentials` or `frontProxy`.",
    ),
    "upstream_http2_ended": LogEvent(
        "warn",
        "An HTTP/2 connection to an endpoint was ended because the endpoint broke the protocol.",
        "See what answers there, and the network between; `connections.protocol: HTTP1` avoids HTTP/2.",
        todo_in_line=True,
    ),
    "upstream_no_answer": LogEvent(
        "warn",
        "An endpoint broke off, or did not answer a request that had been sent; the client got 502, 503 or 504.",
        "See that API server's log.",
    ),
    "upstream_slow": LogEvent(
        "warn",
        "An endpoint took more than 5 s to begin a response that is not long-running. One line a minute for each"
        " endpoint.",
        "See whether that API server, or its etcd, is overloaded; the line has the URI and the user.",
    ),
    "worker_socket_missing": LogEvent(
        "error",
        "A worker has no listening socket of its own, for lack of memory.",
        "Restart mcproxy.",
        todo_in_line=True,
    ),
    "workers_changed": LogEvent(
        "info",
        "A reload has changed `daemon.workers` from one process to several, or back, as an upgrade would: the former "
        "processes complete their requests, and end their watches, which clients begin again.",
    ),
}
