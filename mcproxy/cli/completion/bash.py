"""The completion script for bash: a function with `case` branches. It needs no bash-completion package."""

from __future__ import annotations

from collections.abc import Iterator

from mcproxy.cli.completion.command_line import Command, Value, walk

_HEAD = """\
# Completion of mcproxy for bash, made by `mcproxy completion bash`.

# What an option ("COMMAND --option") takes, or the arguments of a command ("COMMAND"): a kind and its words.
_mcproxy_values() {
    case $1 in
"""
_OPTIONS = """\
    esac
}

# The options of a command, or the commands below it.
_mcproxy_words() {
    case $1 in
"""
_BODY = """\
    esac
}

_mcproxy() {
    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} command= config= option= word kind left=0 i
    local -a asked value
    COMPREPLY=()
    # bash splits --option=value into three words.
    [[ $cur == = ]] && cur= && prev==
    for ((i = 1; i < COMP_CWORD; i++)); do
        word=${COMP_WORDS[i]}
        [[ $word == = ]] && continue
        if ((left > 0)); then
            ((left--))
            [[ $option == -c || $option == --config ]] && config=$word
        elif [[ $word == -* ]]; then
            value=($(_mcproxy_values "$command $word"))
            left=${#value[@]} option=$word
            [[ $left != 0 ]] && left=${value[0]}
        elif [[ $command == "${command%% *}" && -n $(_mcproxy_words "${command:+$command }$word -") ]]; then
            command=${command:+$command }$word
        fi
    done
    if ((left > 0)); then
        value=($(_mcproxy_values "$command $option"))
        kind=${value[1]} value=("${value[@]:2}")
    elif [[ $cur == -* ]]; then
        COMPREPLY=($(compgen -W "$(_mcproxy_words "$command -")" -- "$cur"))
        return
    else
        value=($(_mcproxy_values "$command"))
        kind=${value[1]} value=("${value[@]:2}")
        COMPREPLY=($(compgen -W "$(_mcproxy_words "$command")" -- "$cur"))
    fi
    case $kind in
        file) compopt -o filenames; COMPREPLY+=($(compgen -f -- "$cur")) ;;
        directory) compopt -o filenames; COMPREPLY+=($(compgen -d -- "$cur")) ;;
        words) COMPREPLY+=($(compgen -W "${value[*]}" -- "$cur")) ;;
        names)
            asked=("${COMP_WORDS[0]}" completion --names "${value[0]}")
            [[ -n $config ]] && asked+=(-c "${config/#\\~/$HOME}")
            COMPREPLY+=($(compgen -W "$("${asked[@]}" 2>/dev/null)" -- "$cur"))
            ;;
    esac
}

complete -F _mcproxy mcproxy
"""


def script(root: Command) -> str:
    """Return the script."""
    lines = [_HEAD, *_values(root), _OPTIONS, *_words(root), _BODY]
    return "".join(lines)


def _values(root: Command) -> Iterator[str]:
    """Yield a `case` branch for each option with values: their number, kind and words."""
    for command in walk(root):
        path = " ".join(command.path)
        if command.argument is not None:
            yield _branch([path], f"1 {_of(command.argument)}")
        for option in command.options:
            if option.values:
                yield _branch(
                    [f"{path} {name}" for name in option.names], f"{len(option.values)} {_of(option.values[0])}"
                )


def _words(root: Command) -> Iterator[str]:
    for command in walk(root):
        path = " ".join(command.path)
        if command.commands:
            yield _branch([path], " ".join(each.path[-1] for each in command.commands))
        names = [name for option in command.options for name in option.names]
        yield _branch([f"{path} -"], " ".join(names))


def _of(value: Value) -> str:
    return " ".join((value.kind, *value.words))


def _branch(patterns: list[str], text: str) -> str:
    return f"        {' | '.join(_quote(pattern) for pattern in patterns)}) echo {_quote(text)} ;;\n"


def _quote(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"
