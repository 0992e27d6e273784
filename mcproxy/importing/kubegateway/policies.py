"""Translates KubeGateway's dispatch policies, and the flow control schemas that they name.

In KubeGateway and mcproxy, only the first policy with a matching rule applies. So if a rule matches fewer requests than
in KubeGateway, the other requests fall through to later policies. This is accepted if those policies have the same
limit and endpoints, or refuse; otherwise the rule is carried over as KubeGateway runs it. A rule that cannot be carried
over becomes a policy that rejects, so that its requests do not fall through either.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mcproxy.importing.fragment import Fragment
from mcproxy.importing.kubegateway.policy_rules import KEYS, Mode, translate
from mcproxy.importing.object_files import Fields, UnusableError

# -- flow control schemas ---------------------------------------------------------------------------------------------

_TYPES = ("exempt", "maxRequestsInflight", "tokenBucket")
_GLOBAL = ("globalMaxRequestsInflight", "globalTokenBucket")
_STRATEGIES = ("", "local", "globalAllocate", "globalCount")


class ImportedFlowControls:
    """The flow controls of one UpstreamCluster; their names begin with the cluster's name, to be unique in the file."""

    def __init__(self, fragment: Fragment, cluster: str) -> None:
        self._fragment = fragment
        self._cluster = cluster
        self._names: dict[str, str] = {}
        self._refusing: set[str] = set()

    def translate(self, spec: Fields) -> None:
        """Add the flow controls to the fragment. Raises UnusableError for values that KubeGateway would refuse too."""
        written = spec.fields("flowControl")
        for other in written.others("flowControlSchemas"):
            self._fragment.note(other, "is not known to mcproxy")
        for number, schema in enumerate(written.items("flowControlSchemas")):
            name = schema.text("name")
            if not name or name in self._names:
                raise UnusableError(f"{schema.at('name')}: is {'a duplicate' if name else 'missing'}")
            entry = self._schema(schema)
            entry = {"name": f"{self._cluster}_{number + 1}_{_part(name)}", **entry}
            self._names[name] = entry["name"]
            if _refuses(entry):
                self._refusing.add(name)
            else:
                self._fragment.add("flowControls", entry)

    def leave_out_unused(self, used: Collection[str]) -> None:
        """Remove the flow controls that no policy names, because mcproxy would warn of them."""
        for schema, name in self._names.items():
            if name not in used and schema not in self._refusing:
                what = f'"{schema}" is left out: no policy refers to it'
                self._fragment.note("spec.flowControl.flowControlSchemas", what)
        kept = [entry for entry in self._fragment.sections.pop("flowControls", ()) if entry["name"] in used]
        for entry in kept:
            self._fragment.add("flowControls", entry)

    def name_of(self, schema: str) -> str | None:
        return self._names.get(schema)

    def refuses_all(self, schema: str) -> bool:
        return schema in self._refusing

    def _schema(self, schema: Fields) -> dict[str, Any]:
        for other in schema.others("name", "strategy", *_TYPES, *_GLOBAL):
            self._fragment.note(other, "is not known to mcproxy")
        given = [key for key in _TYPES if schema.has(key)]
        strategy = schema.text("strategy")
        if strategy not in _STRATEGIES or len(given) > 1:
            raise UnusableError(
                f"{schema.path}: has {' and '.join(given) or 'no type'}, strategy {strategy or 'local'}"
            )
        for key, local in zip(_GLOBAL, _TYPES[1:], strict=True):
            if schema.has(key):
                what = "is not carried over: each mcproxy limits by itself; see `shared: true` and daemon.sharedState"
                if local not in given:
                    given.append(local)
                    what += "; its numbers are taken for one process"
                self._fragment.note(schema.at(key), what)
        if not given:
            raise UnusableError(f"{schema.path}: has no type of flow control")
        if given[0] == "exempt":
            return {"type": "Exempt"}
        numbers = schema.fields(given[0] if schema.has(given[0]) else _GLOBAL[_TYPES.index(given[0]) - 1])
        if given[0] == "maxRequestsInflight":
            most = numbers.integer("max")
            if most:
                what = (
                    "watches and other long-running requests are counted apart here: "
                    f"up to {most} of them beside up to {most} others"
                )
                self._fragment.note(numbers.at("max"), what)
            return {"type": "MaxRequestsInflight", "max": most, "maxLongRunning": most}
        return {"type": "TokenBucket", "qps": numbers.integer("qps"), "burst": numbers.integer("burst")}


def _refuses(entry: dict[str, Any]) -> bool:
    """Return whether a flow control refuses every request; mcproxy has no bucket that is always empty."""
    return entry.get("max") == 0 or entry.get("burst") == 0 or entry.get("qps") == 0


def _part(name: str) -> str:
    """Return the valid part of a flow control's name; the caller puts a number before it, so the result is unique."""
    text = "".join(char if char.isascii() and (char.isalnum() or char in "._-") else "-" for char in name[:40])
    return text.strip("._-") or "schema"


ALL_REQUESTS = (
    {"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]},
    {"verbs": ["*"], "nonResourceURLs": ["*"]},
)
_POLICY_KEYS = ("strategy", "upstreamSubset", "rules", "flowControlSchemaName", "logMode")
_MODES = ("", "on", "off")


_HERE = {
    Mode.AS_WRITTEN: "here it excludes what it says, unless you choose --as-run",
    Mode.AS_RUN: 'so it is "*" here, too; for why, and --as-written: mcproxy docs migrate-kubegateway',
}


@dataclass(frozen=True, slots=True)
class RejectAnswer:
    """The response of a policy that refuses requests."""

    code: int
    message: str

    def policy(self, name: str, rules: list[dict[str, Any]]) -> dict[str, Any]:
        return {"name": name, "rules": rules, "reject": {"code": self.code, "message": self.message}}


@dataclass(frozen=True, slots=True)
class _Treatment:
    """The settings for the requests of a policy: limit, endpoints, logging."""

    keys: Mapping[str, Any]
    reject: RejectAnswer | None

    def is_least_of(self, others: Sequence[_Treatment]) -> bool:
        """Return whether each of `others` refuses requests, or has the same limit and endpoints as this treatment."""
        return all(other.reject is not None or self._limits() == other._limits() for other in others)

    def _limits(self) -> tuple[Any, Any]:
        return self.keys.get("flowControl"), self.keys.get("endpoints")


class Policies:
    """The policies of one UpstreamCluster."""

    def __init__(
        self,
        fragment: Fragment,
        endpoints: Mapping[str, str],
        controls: ImportedFlowControls,
        logging: str,
        mode: Mode | None,
    ) -> None:
        """`endpoints`: mcproxy's names of endpoints by KubeGateway's names. `logging`: the cluster's log mode.

        `mode` applies to every rule. None: AS_WRITTEN for a policy if all later policies refuse requests or have the
        same limit and endpoints, else AS_RUN.
        """
        self._fragment = fragment
        self._endpoints = endpoints
        self._controls = controls
        self._logging = logging
        self._mode = mode

    def translate(self, spec: Fields) -> list[dict[str, Any]]:
        """Return at least one policy, because a server without policies lets every request pass."""
        found: list[dict[str, Any]] = []
        written = list(spec.items("dispatchPolicies"))
        treatments = [self._treatment(policy) for policy in written]
        for number, (policy, treatment) in enumerate(zip(written, treatments, strict=True)):
            mode = self._mode
            if mode is None:
                mode = Mode.AS_WRITTEN if treatment.is_least_of(treatments[number + 1 :]) else Mode.AS_RUN
            found += self._policy(policy, number, treatment, mode)
        if not found:
            self._fragment.note("spec.dispatchPolicies", "match no request, so every request is refused, as there")
            found = [
                RejectAnswer(403, "no dispatch policy matches").policy("nothing", [dict(rule) for rule in ALL_REQUESTS])
            ]
        return found

    def _policy(self, policy: Fields, number: int, treatment: _Treatment, mode: Mode) -> list[dict[str, Any]]:
        rules, refused = self._rules(policy, Mode.AS_RUN if treatment.reject is not None else mode)
        name = f"policy-{number + 1}"
        found: list[dict[str, Any]] = []
        if rules and treatment.reject is not None:
            found.append(treatment.reject.policy(name, rules))
        elif rules:
            found.append({"name": name, "rules": rules, **treatment.keys})
        else:
            self._fragment.note(policy.at("rules"), "match nothing, so the policy is left out")
        if refused:
            answer = RejectAnswer(403, "a dispatch policy of KubeGateway's could not be carried over")
            found.append(answer.policy(f"{name}-not-carried-over", refused))
        return found

    def _rules(self, policy: Fields, mode: Mode) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """Return the rules, and rules for requests that must be refused because their rule cannot be expressed."""
        rules: list[dict[str, Any]] = []
        refused: list[dict[str, Any]] = []
        for rule in policy.items("rules"):
            for other in rule.others(*KEYS):
                self._fragment.note(other, "is not known to mcproxy")
            made = translate(rule, mode)
            for where, what in made.notes:
                self._fragment.note(where, what)
            for where, why in made.differing:
                self._fragment.note(where, f"{why}; {_HERE[mode]}")
            if made.refused:
                widest = translate(rule, Mode.AS_RUN).rule
                refused += [widest] if widest is not None else []
            elif made.rule is not None and made.rule not in rules:
                rules.append(made.rule)
        return rules, refused

    def _treatment(self, policy: Fields) -> _Treatment:
        for other in policy.others(*_POLICY_KEYS):
            self._fragment.note(other, "is not known to mcproxy")
        strategy = policy.text("strategy")
        if strategy not in ("", "RoundRobin"):
            self._fragment.note(policy.at("strategy"), f'"{strategy}" is not carried over: RoundRobin is what was done')
        keys: dict[str, Any] = {}
        reject = self._endpoints_of(policy, keys) or self._flow_control(policy, keys)
        mode = policy.text("logMode")
        if mode not in _MODES:
            self._fragment.note(policy.at("logMode"), f'"{mode}" is neither on nor off')
        if self._logging != "off":
            keys["accessLog"] = mode != "off" and "on" in (mode, self._logging)
        return _Treatment(keys, reject)

    def _endpoints_of(self, policy: Fields, keys: dict[str, Any]) -> RejectAnswer | None:
        subset = policy.texts("upstreamSubset")
        known = list(dict.fromkeys(self._endpoints[each] for each in subset if each in self._endpoints))
        if unknown := [each for each in subset if each not in self._endpoints]:
            what = f'"{unknown[0]}" is no endpoint of spec.servers, and is left out'
            self._fragment.note(policy.at("upstreamSubset"), what)
        if subset and not known:
            self._fragment.note(policy.path, "has no endpoint of spec.servers: its requests are refused, as there")
            return RejectAnswer(503, "no endpoint of the cluster takes this request")
        if known and set(known) != set(self._endpoints.values()):
            keys["endpoints"] = known
        return None

    def _flow_control(self, policy: Fields, keys: dict[str, Any]) -> RejectAnswer | None:
        control = policy.text("flowControlSchemaName")
        if not control:
            return None
        name = self._controls.name_of(control)
        if name is None:
            self._fragment.note(policy.path, f'its flow control "{control}" is not defined: its requests are refused')
            return RejectAnswer(403, "the flow control of this request is not defined")
        if self._controls.refuses_all(control):
            what = f'its flow control "{control}" allows nothing: its requests are refused, as there'
            self._fragment.note(policy.path, what)
            return RejectAnswer(429, "no request is allowed by its flow control")
        keys["flowControl"] = name
        return None
