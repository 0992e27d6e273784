"""KubeGateway's dispatch policies as mcproxy's.

In both the first policy with a matching rule applies, and only that one. So a rule that is carried over narrower leaves
requests to the policies after it, which is reported; and one that cannot be carried over, or whose policy refuses all,
becomes a policy that rejects, so that nothing falls through to a policy that allows more.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mcproxy.importing.fragment import Fragment
from mcproxy.importing.kubegateway.flow_controls import FlowControls
from mcproxy.importing.kubegateway.rules import KEYS, Mode, translate
from mcproxy.importing.objects import Fields

ALL_REQUESTS = (
    {"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]},
    {"verbs": ["*"], "nonResourceURLs": ["*"]},
)
_POLICY_KEYS = ("strategy", "upstreamSubset", "rules", "flowControlSchemaName", "logMode")
_MODES = ("", "on", "off")


@dataclass(frozen=True, slots=True)
class Reject:
    """What a policy answers instead of forwarding."""

    code: int
    message: str
    why: str

    def policy(self, name: str, rules: list[dict[str, Any]]) -> dict[str, Any]:
        return {"name": name, "rules": rules, "reject": {"code": self.code, "message": self.message}}


class Policies:
    """The policies of one UpstreamCluster."""

    def __init__(
        self, fragment: Fragment, endpoints: Mapping[str, str], controls: FlowControls, logging: str, mode: Mode
    ) -> None:
        """`endpoints` are mcproxy's names of them by their text there; `logging` is the cluster's log mode."""
        self._fragment = fragment
        self._endpoints = endpoints
        self._controls = controls
        self._logging = logging
        self._mode = mode

    def translate(self, spec: Fields) -> list[dict[str, Any]]:
        """Return the policies; never none, since a server without any lets everything pass."""
        found: list[dict[str, Any]] = []
        written = list(spec.items("dispatchPolicies"))
        for number, policy in enumerate(written):
            found += self._policy(policy, number, is_last=number == len(written) - 1)
        if not found:
            self._fragment.note("spec.dispatchPolicies", "match no request, so every request is refused, as there")
            found = [Reject(403, "no dispatch policy matches", "").policy("nothing", [dict(r) for r in ALL_REQUESTS])]
        return found

    def _policy(self, policy: Fields, number: int, *, is_last: bool) -> list[dict[str, Any]]:
        for other in policy.others(*_POLICY_KEYS):
            self._fragment.note(other, "is not known to mcproxy")
        strategy = policy.text("strategy")
        if strategy not in ("", "RoundRobin"):
            self._fragment.note(policy.at("strategy"), f'"{strategy}" is not carried over: RoundRobin is what was done')
        keys, reject = self._treatment(policy)
        if reject is not None:
            self._fragment.note(policy.path, reject.why)
        rules, refused, narrower = self._rules(policy, Mode.AS_RUN if reject is not None else self._mode)
        name = f"policy-{number + 1}"
        found: list[dict[str, Any]] = []
        if rules:
            found.append(reject.policy(name, rules) if reject is not None else {"name": name, "rules": rules, **keys})
        else:
            self._fragment.note(policy.at("rules"), "match nothing, so the policy is left out")
        if refused:
            answer = Reject(403, "a dispatch policy of KubeGateway's could not be carried over", "")
            found.append(answer.policy(f"{name}-not-carried-over", refused))
        if narrower and not is_last:
            self._fragment.note(
                policy.path, "requests that it does not match here, and did there, go on to the policies after it"
            )
        return found

    def _rules(self, policy: Fields, mode: Mode) -> tuple[list[dict[str, Any]], list[dict[str, Any]], bool]:
        """Return rules, rules of what must be refused because it cannot be said, and whether some are narrower."""
        rules: list[dict[str, Any]] = []
        refused: list[dict[str, Any]] = []
        narrower = False
        for rule in policy.items("rules"):
            for other in rule.others(*KEYS):
                self._fragment.note(other, "is not known to mcproxy")
            made = translate(rule, mode)
            for where, what in made.notes:
                self._fragment.note(where, what)
            narrower = narrower or made.narrower
            if made.refused:
                widest = translate(rule, Mode.AS_RUN).rule
                refused += [widest] if widest is not None else []
            elif made.rule is not None and made.rule not in rules:
                rules.append(made.rule)
        return rules, refused, narrower

    def _treatment(self, policy: Fields) -> tuple[dict[str, Any], Reject | None]:
        """Return endpoints, limit and access log of a policy; or what it answers, where it can only refuse."""
        subset = policy.texts("upstreamSubset")
        known = list(dict.fromkeys(self._endpoints[each] for each in subset if each in self._endpoints))
        if unknown := [each for each in subset if each not in self._endpoints]:
            what = f'"{unknown[0]}" is no endpoint of spec.servers, and is left out'
            self._fragment.note(policy.at("upstreamSubset"), what)
        if subset and not known:
            why = "has no endpoint of spec.servers: its requests are refused, as there"
            return {}, Reject(503, "no endpoint of the cluster takes this request", why)
        keys: dict[str, Any] = {}
        if known and set(known) != set(self._endpoints.values()):
            keys["endpoints"] = known
        control = policy.text("flowControlSchemaName")
        if control:
            name = self._controls.name_of(control)
            if name is None:
                why = f'its flow control "{control}" is not defined: its requests are refused'
                return {}, Reject(403, "the flow control of this request is not defined", why)
            if self._controls.refuses_all(control):
                why = f'its flow control "{control}" allows nothing: its requests are refused, as there'
                return {}, Reject(429, "no request is allowed by its flow control", why)
            keys["flowControl"] = name
        mode = policy.text("logMode")
        if mode not in _MODES:
            self._fragment.note(policy.at("logMode"), f'"{mode}" is neither on nor off')
        if self._logging != "off":
            logged = mode != "off" and "on" in (mode, self._logging)
            keys["accessLog"] = logged
        return keys, None
