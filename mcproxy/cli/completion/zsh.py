"""The completion script for zsh: a function for each command, with specifications for zsh's `_arguments`."""

from __future__ import annotations

import re
from collections.abc import Iterator

from mcproxy.cli.completion.command_line import Command, Option, Value, walk

_HEAD = """\
#compdef mcproxy
# Completion of mcproxy for zsh, made by `mcproxy completion zsh`.

# The names in section $1 of the configuration that the command line names.
_mcproxy_names() {
    local -a config names
    local file=${opt_args[-c]:-${opt_args[--config]}}
    [[ -n $file ]] && config=(-c ${~file})
    names=(${(f)"$(_call_program names ${(q)_mcproxy_program} completion --names $1 ${(q)config} 2>/dev/null)"})
    compadd -a names
}

"""
_TAIL = """\
if [[ $funcstack[1] == _mcproxy ]]; then
    _mcproxy "$@"  # the first Tab has loaded it from a folder of fpath
else             # source <(mcproxy completion zsh), maybe before compinit
    (( $+functions[compdef] )) || { autoload -Uz compinit && compinit -i }
    compdef _mcproxy mcproxy
fi
"""


def script(root: Command) -> str:
    """Return the script."""
    return "".join([_HEAD, *(part for command in walk(root) for part in _function(command)), _TAIL])


def _function(command: Command) -> Iterator[str]:
    yield f"{_name(command)}() {{\n"
    if not command.path:
        yield "    local _mcproxy_program=$words[1]\n"
    specifications = [_option(option) for option in command.options]
    if command.commands:
        yield "    local context state state_descr line\n    local -a commands\n    typeset -A opt_args\n"
        specifications += ["'1:command:->command'", "'*::argument:->argument'"]
    elif command.argument is not None:
        specifications.append(_quote(f"*:{_action(command.argument)}"))
    yield "    _arguments " + ("-C " if command.commands else "") + "-s \\\n"
    yield " \\\n".join(f"        {each}" for each in specifications) + "\n"
    if command.commands:
        yield from _below(command)
    yield "}\n\n"


def _below(command: Command) -> Iterator[str]:
    yield "    case $state in\n        command)\n            commands=(\n"
    for each in command.commands:
        yield f"                {_quote(f'{each.path[-1]}:{each.help}')}\n"
    yield "            )\n            _describe -t commands command commands\n            ;;\n"
    yield "        argument)\n            case $line[1] in\n"
    for each in command.commands:
        yield f"                {each.path[-1]}) {_name(each)} ;;\n"
    yield "            esac\n            ;;\n    esac\n"


def _option(option: Option) -> str:
    values = "".join(f":{_action(value)}" for value in option.values)
    text = f"[{_escape(option.help)}]"
    if len(option.names) == 1:
        return _quote(f"{option.names[0]}{text}{values}")
    exclusive = " ".join(option.names)
    return f"{_quote(f'({exclusive})')}{{{','.join(option.names)}}}{_quote(text + values)}"


def _action(value: Value) -> str:
    """Return `message:action` of _arguments."""
    if value.kind == "file":
        return "file:_files"
    if value.kind == "directory":
        return "directory:_files -/"
    if value.kind == "words":
        return f"value:({' '.join(value.words)})"
    return f"name: _mcproxy_names {value.words[0]}" if value.kind == "names" else "value: "


def _name(command: Command) -> str:
    return "_".join(("_mcproxy", *("_" + re.sub(r"\W", "_", word) for word in command.path)))


def _escape(text: str) -> str:
    return re.sub(r"([\[\]:\\])", r"\\\1", text)


def _quote(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"
