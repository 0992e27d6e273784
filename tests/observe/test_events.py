"""Each log call has a literal name that the registry has, with its level; the registry has no other names."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import mcproxy
from mcproxy.observe.events import EVENTS

PACKAGE = Path(mcproxy.__file__).parent
LEVELS = {"debug": "debug", "info": "info", "warn": "warn", "error": "error", "critical": "error", "failure": "error"}
LOGGERS = {"log", "_log", "logger", "_logger"}


@dataclass(frozen=True)
class Call:
    """A log call, or a call of a function that logs with the name that it is given."""

    place: str
    levels: frozenset[str]
    event: ast.expr | None
    passes_on: bool
    """It logs with the name that the function around it was given."""


@cache
def trees_that_log() -> dict[str, ast.Module]:
    """The modules that log, or pass the name of an event on: a fifth of all."""
    return {
        str(path.relative_to(PACKAGE)): ast.parse(text)
        for path in sorted(PACKAGE.rglob("*.py"))
        if path.relative_to(PACKAGE).parts[0] != "demo"  # it has a log of its own, of simulated clusters
        and re.search(r"Logger|\bevent=|log_format|\blog\b", text := path.read_text())
    }


@cache
def calls() -> tuple[Call, ...]:
    trees = trees_that_log()
    direct = [call for name, tree in trees.items() for call in _direct(name, tree)]
    wrappers: dict[str, set[str]] = defaultdict(set)
    for tree in trees.values():
        for function in ast.walk(tree):
            if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef) and _has_event(function):
                wrappers[function.name] |= {level for call in _direct("", function) for level in call.levels}
    return (*direct, *(call for name, tree in trees.items() for call in _through(name, tree, wrappers)))


def _has_event(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return any(argument.arg == "event" for argument in function.args.kwonlyargs)


def _direct(name: str, tree: ast.AST) -> Iterator[Call]:
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Name(id=logger), attr=level)) if (
                logger in LOGGERS and level in LEVELS
            ):
                event = _keyword(node)
                passes_on = isinstance(event, ast.Name) and event.id == "event"
                yield Call(f"{name}:{node.lineno}", frozenset({LEVELS[level]}), event, passes_on)
            case ast.Dict(keys=keys, values=values):
                for key, value in zip(keys, values, strict=True):
                    if isinstance(key, ast.Constant) and key.value == "event" and _is_event_dict(keys):
                        yield Call(f"{name}:{node.lineno}", frozenset({_level_of(values)}), value, passes_on=False)


def _is_event_dict(keys: list[ast.expr | None]) -> bool:
    return any(isinstance(key, ast.Constant) and key.value == "log_format" for key in keys)


def _level_of(values: list[ast.expr]) -> str:
    (level,) = (value.attr for value in values if isinstance(value, ast.Attribute) and value.attr in LEVELS)
    return LEVELS[level]


def _through(name: str, tree: ast.AST, wrappers: dict[str, set[str]]) -> Iterator[Call]:
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        match node.func:
            case ast.Name(id=function) | ast.Attribute(attr=function) if function in wrappers:
                event = _keyword(node)
                if event is not None:
                    yield Call(f"{name}:{node.lineno}", frozenset(wrappers[function]), event, passes_on=False)


def _keyword(call: ast.Call) -> ast.expr | None:
    return next((keyword.value for keyword in call.keywords if keyword.arg == "event"), None)


def test_there_are_log_calls() -> None:
    assert len(calls()) > 150


def test_each_log_call_has_a_literal_name() -> None:
    without = [
        call.place
        for call in calls()
        if not call.passes_on and not (isinstance(call.event, ast.Constant) and isinstance(call.event.value, str))
    ]
    assert without == []


def test_each_name_is_registered_with_its_levels_and_the_registry_has_no_other() -> None:
    used: dict[str, set[str]] = defaultdict(set)
    for call in calls():
        if isinstance(call.event, ast.Constant) and isinstance(call.event.value, str):
            used[call.event.value] |= call.levels
    used["library_message"] |= set(LEVELS.values())  # given to events of libraries
    assert {name: ", ".join(level for level in dict.fromkeys(LEVELS.values()) if level in levels)
            for name, levels in used.items()} == {name: event.level for name, event in EVENTS.items()}  # fmt: skip


def test_names_are_sorted_words_and_meanings_sentences() -> None:
    assert list(EVENTS) == sorted(EVENTS)
    for name, event in EVENTS.items():
        assert re.fullmatch(r"[a-z][a-z0-9]*(_[a-z0-9]+)+", name)
        assert re.fullmatch(r"[A-Z`].*[.]", event.meaning), name
        assert re.fullmatch(r"([A-Z`].*[.])?", event.todo), name


def test_a_line_of_a_bug_is_never_named_otherwise() -> None:
    """One name to alert on for all bugs, except where the operation that failed has a name of its own."""
    for path, tree in trees_that_log().items():
        for node in ast.walk(tree):
            match node:
                case ast.Call(func=ast.Attribute(value=ast.Name(id=logger), attr="failure")) if logger in LOGGERS:
                    event = _keyword(node)
                    assert isinstance(event, ast.Name) or (
                        isinstance(event, ast.Constant) and event.value == "internal_error"
                    ), f"{path}:{node.lineno}"
