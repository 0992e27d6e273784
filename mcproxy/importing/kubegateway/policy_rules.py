"""Translates rules of KubeGateway's dispatch policies.

KubeGateway's rules have the same lists as mcproxy's. They differ where KubeGateway's matcher
(pkg/apis/proxy/v1alpha1/evaluation_helpers.go) differs from its API documentation. In the matcher:

- a list of two or more inverted items matches every value, because each value differs from one of the items;
- an inverted user group matches every user, because each user has another group too (system:authenticated);
- an inverted item with a trailing star, and an inverted `*/subresource`, exclude no value;
- trailing stars are patterns only in users and nonResourceURLs; mcproxy has them in userGroups and resourceNames too,
  in which KubeGateway takes them literally;
- some items match no value (a verb in capitals, `pods/*`), which are errors in mcproxy.

So a rule is carried over AS_WRITTEN (as the API documents it), which never matches more than the matcher does, or
AS_RUN, which matches the same requests as the matcher.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from mcproxy.config.sections.request_rules import Kind, fault
from mcproxy.importing.object_files import Fields

_NOTHING = None


class Mode(enum.Enum):
    AS_WRITTEN = "as written"
    AS_RUN = "as run"


_LISTS = {
    "verbs": Kind.VERB,
    "apiGroups": Kind.GROUP,
    "resources": Kind.RESOURCE,
    "resourceNames": Kind.NAME_OR_NONE,
    "users": Kind.NAME,
    "userGroups": Kind.NAME,
    "nonResourceURLs": Kind.URL,
}
KEYS = (*_LISTS, "serviceAccounts")
_PATTERNS = frozenset(("users", "nonResourceURLs"))
"""The lists in which a trailing star is a pattern for KubeGateway."""


@dataclass(slots=True)
class Translation:
    """A translated rule; the rule is None if it matches no request, or cannot be expressed.

    `differing`: inverted lists that match more in KubeGateway than documented; AS_WRITTEN excludes their items, AS_RUN
    matches every value. `refused`: the rule matches some requests that cannot be expressed, so all requests that it may
    match must be refused.
    """

    rule: dict[str, Any] | None = None
    notes: list[tuple[str, str]] = field(default_factory=list)  # path, what
    differing: list[tuple[str, str]] = field(default_factory=list)  # path, why
    refused: bool = False


@dataclass(frozen=True, slots=True)
class _UntranslatableError(Exception):
    where: str
    what: str


def translate(rule: Fields, mode: Mode) -> Translation:
    """Return the rule in mcproxy's form. Raises UnusableError for values of wrong types."""
    made = Translation()
    lists: dict[str, list[str] | None] = {}
    for key, kind in _LISTS.items():
        written = rule.texts(key)
        try:
            lists[key] = _List(key, kind, rule.at(key), mode, made).items(written)
        except _UntranslatableError as error:
            made.notes.append((error.where, f"{error.what}; requests that the rule may match are refused"))
            made.refused = True
            return made
    accounts = _service_accounts(rule, made)
    names_users = bool(rule.texts("users") or list(rule.items("serviceAccounts")))
    if names_users and not lists["users"] and not accounts:
        return made  # the rule names only users that cannot exist; without these it would match all users
    if any(lists[key] is _NOTHING for key in ("verbs", "userGroups")) or not lists["verbs"]:
        return made
    if not (lists["apiGroups"] and lists["resources"]) or lists["resourceNames"] is _NOTHING:
        lists.update(apiGroups=[], resources=[], resourceNames=[])
    if not (lists["resources"] or lists["nonResourceURLs"]):
        return made
    found: dict[str, Any] = {key: items for key, items in lists.items() if items}
    if accounts and lists["users"] != ["*"]:
        found["serviceAccounts"] = accounts
    made.rule = found
    return made


@dataclass(frozen=True, slots=True)
class _List:
    """One list of a rule."""

    key: str
    kind: Kind
    where: str
    mode: Mode
    made: Translation

    def items(self, written: Sequence[str]) -> list[str] | None:
        """Return the list in mcproxy's form; None if it matches no value, [] if `written` is empty."""
        if not written:
            return []
        if "*" in written:
            return ["*"]
        plain = [item for item in dict.fromkeys(written) if not item.startswith("-")]
        if plain:  # KubeGateway and mcproxy ignore inverted items in the same list
            return self._plain(plain)
        inverted = list(dict.fromkeys(written))
        if self.kind is Kind.URL:
            self._note("inverted URLs match nothing, and are left out")
            return _NOTHING
        return self._inverted(inverted) if self.mode is Mode.AS_WRITTEN else self._as_run(inverted)

    def _plain(self, items: Sequence[str]) -> list[str] | None:
        found: dict[str, None] = {}
        for item in items:
            text = item
            if self.key in _PATTERNS and item.endswith("*"):
                text = item.rstrip("*") + "*"
                if text == "*":
                    return ["*"]
            elif "*" in item and self.key not in ("resources",):
                self._note(f'"{item}" is no pattern there, and matches only what is called so; it is left out')
                continue
            wrong = fault(text, self.kind)
            if wrong is not None:
                self._note(f'"{item}" {wrong[0]}; it matches nothing, and is left out')
                continue
            found[text] = None
        return list(found) or _NOTHING

    def _inverted(self, items: Sequence[str]) -> list[str]:
        for item in items:
            wrong = fault(item, self.kind)
            if wrong is not None:
                raise _UntranslatableError(self.where, f'"{item}" {wrong[0]}, and cannot be carried over')
        if why := self._why_more(items):
            self.made.differing.append((self.where, why))
        return list(items)

    def _why_more(self, items: Sequence[str]) -> str:
        if len(items) > 1:
            return "KubeGateway matched everything with several inverted items"
        if self.key == "userGroups":
            return "KubeGateway matched every user with an inverted group, since all have system:authenticated besides"
        if items[0].endswith("*"):
            return "KubeGateway matched everything with an inverted pattern"
        if items[0].startswith("-*/"):
            return "KubeGateway matched every resource with an inverted */subresource"
        return ""

    def _as_run(self, items: Sequence[str]) -> list[str]:
        why = self._why_more(items)
        if not why and (wrong := fault(items[0], self.kind)) is not None:
            why = f'KubeGateway matched everything with "{items[0]}", which {wrong[0]}'
        if not why:
            return list(items)
        self.made.differing.append((self.where, why))
        return ["*"]

    def _note(self, what: str) -> None:
        self.made.notes.append((self.where, what))


def _service_accounts(rule: Fields, made: Translation) -> list[dict[str, str]]:
    found = []
    for account in rule.items("serviceAccounts"):
        namespace, name = account.text("namespace"), account.text("name")
        if not all(part and not part.startswith("-") and not {"*", ":"} & set(part) for part in (namespace, name)):
            made.notes.append((account.path, "names no service account; it matches nothing, and is left out"))
        elif (entry := {"namespace": namespace, "name": name}) not in found:
            found.append(entry)
    return found
