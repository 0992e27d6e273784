"""Errors and warnings about a configuration, each with its position, the mistake and the remedy.

Problems are collected rather than raised, so that the operator sees all of them at once. Only `load` raises.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from mcproxy.config.model import Mark
from mcproxy.config.suggestions import suggest

# The warnings of `mcproxy check`, by their stable names, and the comment that disables a warning.
#
# The comment is ``# mcproxy: allow NAME`` at the end of the line with the warning; commas separate several names.

LINTS = {
    "anonymous-reads": "cached reads by users who are all system:anonymous",
    "anonymous-users": "an API service whose users are all system:anonymous",
    "broad-origin": "a CORS origin whose wildcard stands for every host of a top-level zone",
    "broad-rule": "an authorization rule that includes secrets, exec or impersonation without naming them",
    "certificate-names": "a server name that no certificate covers, or a certificate without names",
    "certificate-usage": "a server certificate that is for clients only, or the other way round",
    "chain-order": "a certificate chain that is not in the order of its issuers",
    "default-server": "a default server for one cluster on a listener with servers of other clusters",
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
    "no-authorization": "a server without an authorizer that a hub reaches through a tunnel",
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
    "shared-accounts": "an API service that gets the accounts of another cluster in addition to its own",
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


SHOWN = 3
"""Limit of the equal problems that are shown in full."""
_PLACES = 8  # limit of the listed positions of the other equal problems


@dataclass(frozen=True, slots=True)
class Problem:
    """An error or warning. Its text is ``file:line:column: key.path: what is wrong; what would be right``."""

    mark: Mark | None
    key: str  # "clusters[2].endpoints[0].url"; "" for the whole file
    what: str
    right: str | None = None
    lint: str | None = None  # the name of a warning that a comment can allow (`LINTS`); None: no comment can allow it
    allowed_at: Mark | None = None  # line on which a comment can allow the warning, if it is not `mark`

    def __str__(self) -> str:
        where = [str(self.mark)] if self.mark else []
        where += [self.key] if self.key else []
        text = f"{self.what}; {self.right}" if self.right else self.what
        if self.lint is not None:
            at = f" at {self.allowed_at}" if self.allowed_at is not None else ""
            text += f" (or keep it: # mcproxy: allow {self.lint}{at})"
        return ": ".join([*where, text])


class ConfigErrors(Exception):
    """The configuration is invalid. `problems` has all errors, `warnings` all warnings, both sorted by position."""

    def __init__(self, problems: Iterable[Problem], warnings: Iterable[Problem] = ()) -> None:
        self.problems: tuple[Problem, ...] = tuple(problems)
        self.warnings: tuple[Problem, ...] = tuple(warnings)
        super().__init__(self.problems, self.warnings)

    @property
    def lines(self) -> tuple[str, ...]:
        """The errors as text, one per line; of many equal errors, only the first few."""
        return lines_of(self.problems)

    def __str__(self) -> str:
        return "\n".join(self.lines)


def lines_of(problems: Sequence[Problem]) -> tuple[str, ...]:
    """Return the text of each problem. If more than SHOWN are equal, the last line lists the other positions."""
    equal: dict[tuple[str, str | None, str | None], list[Problem]] = {}
    for problem in problems:
        equal.setdefault((problem.what, problem.right, problem.lint), []).append(problem)
    lines = []
    seen: Counter[tuple[str, str | None, str | None]] = Counter()
    for problem in problems:
        key = problem.what, problem.right, problem.lint
        more = equal[key][SHOWN:]
        if seen[key] < SHOWN or len(more) == 1:
            lines.append(str(problem))
        elif seen[key] == SHOWN:
            lines.append(_elsewhere(more))
        seen[key] += 1
    return tuple(lines)


def _elsewhere(same: Sequence[Problem]) -> str:
    marks = [str(each.mark) for each in same if each.mark is not None]
    named = ", ".join(marks[:_PLACES]) + (", …" if len(marks) > _PLACES else "")
    return f"{len(same)} more of these: {same[0].what}" + (f" ({named})" if named else "")


@dataclass(slots=True)
class Problems:
    """The problems of one load, sorted by file, in the order of `files` (reading order), and line."""

    files: list[str] = field(default_factory=list)
    _errors: dict[Problem, None] = field(default_factory=dict)
    _warnings: dict[Problem, None] = field(default_factory=dict)
    _notes: dict[Problem, None] = field(default_factory=dict)
    _allowed: dict[tuple[str, int], tuple[str, ...]] = field(default_factory=dict)  # (file, line) -> warnings

    def error(self, mark: Mark | None, key: str, what: str, right: str | None = None) -> None:
        self._errors[Problem(mark, key, what, right)] = None

    def error_unless_allowed(self, mark: Mark, lint: str, key: str, what: str, right: str | None = None) -> None:
        """Report an error which is a warning in other contexts, unless the line at `mark` allows it."""
        assert lint in LINTS, lint
        if lint not in self._allowed.get((mark.file, mark.line), ()):
            self._errors[Problem(mark, key, what, right, lint)] = None

    def warn(
        self, mark: Mark, lint: str, key: str, what: str, right: str | None = None, *, allowed_at: Mark | None = None
    ) -> None:
        """Report a warning by its name in `LINTS`, unless the line at `mark`, or `allowed_at`, allows it."""
        assert lint in LINTS, lint
        place = allowed_at if allowed_at is not None else mark
        if lint not in self._allowed.get((place.file, place.line), ()):
            self._warnings[Problem(mark, key, what, right, lint, allowed_at)] = None

    def note(self, mark: Mark, key: str, what: str) -> None:
        """Add a remark for `check` that is not a warning."""
        self._notes[Problem(mark, key, what)] = None

    def allow(self, mark: Mark, names: Iterable[str]) -> None:
        """Disable warnings on the line of `mark`; an unknown name is an error."""
        names = tuple(names)
        self._allowed[mark.file, mark.line] = names
        for name in names:
            if name not in LINTS:
                self.error(mark, "", f"there is no warning {name} to allow", suggest(name, LINTS))

    @property
    def errors(self) -> tuple[Problem, ...]:
        return tuple(sorted(self._errors, key=self._place))

    @property
    def warnings(self) -> tuple[Problem, ...]:
        return tuple(sorted(self._warnings, key=self._place))

    @property
    def notes(self) -> tuple[Problem, ...]:
        return tuple(sorted(self._notes, key=self._place))

    def _place(self, problem: Problem) -> tuple[int, str, int, int, str]:
        mark = problem.mark
        if mark is None:
            return (-1, "", 0, 0, problem.key)
        order = self.files.index(mark.file) if mark.file in self.files else len(self.files)
        return (order, mark.file, mark.line, mark.column, problem.key)
