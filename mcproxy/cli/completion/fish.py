"""The completion script for fish: one line for each command and option, valid after the words of its command."""

from __future__ import annotations

from collections.abc import Iterator

from mcproxy.cli.completion.command_line import Command, Option, Value, walk

_HEAD = """\
# Completion of mcproxy for fish, made by `mcproxy completion fish`.

# Succeeds where the words before the cursor are the commands $argv, with their options.
function __mcproxy_at
    set -l path
    set -l left 0
    for word in (commandline -opc)[2..-1]
        if test $left -gt 0
            set left (math $left - 1)
        else if string match -q -- '-*' $word
            set left (__mcproxy_takes "$path" $word)
        else if contains -- "$path $word" $__mcproxy_paths
            set path "$path $word"
        end
    end
    test "$path" = "$argv[1]"
end

# The names in section $argv[1] of the configuration that the command line names.
function __mcproxy_names
    set -l words (commandline -opc)
    set -l config
    for i in (seq 2 (count $words))
        switch $words[$i]
            case -c --config
                set -q words[(math $i + 1)]; and set config -c $words[(math $i + 1)]
            case '--config=*'
                set config -c (string replace -- --config= '' $words[$i])
        end
    end
    $words[1] completion --names $argv[1] $config 2>/dev/null
end

"""


def script(root: Command) -> str:
    """Return the script."""
    return "".join([_HEAD, *_takes(root), *_paths(root), "complete -c mcproxy -f\n", *_completions(root)])


def _takes(root: Command) -> Iterator[str]:
    yield "# How many values option $argv[2] of the commands $argv[1] takes.\nfunction __mcproxy_takes\n"
    yield '    switch "$argv[1] $argv[2]"\n'
    by_count: dict[int, list[str]] = {}
    for command in walk(root):
        for option in command.options:
            if option.values:
                by_count.setdefault(len(option.values), []).extend(f"{_path(command)} {n}" for n in option.names)
    for count, patterns in by_count.items():
        yield f"        case {' '.join(_quote(pattern) for pattern in patterns)}\n            echo {count}\n"
    yield "        case '*'\n            echo 0\n    end\nend\n\n"


def _paths(root: Command) -> Iterator[str]:
    paths = [_quote(_path(command)) for command in walk(root) if command.path]
    yield f"set -g __mcproxy_paths {' '.join(paths)}\n\n"


def _completions(root: Command) -> Iterator[str]:
    for command in walk(root):
        here = _quote(f'__mcproxy_at "{_path(command)}"')
        for each in command.commands:
            yield f"complete -c mcproxy -n {here} -a {_quote(each.path[-1])} -d {_quote(each.help)}\n"
        if command.argument is not None:
            yield f"complete -c mcproxy -n {here}{_argument(command.argument)}\n"
        for option in command.options:
            yield f"complete -c mcproxy -n {here}{_option(option)}\n"


def _option(option: Option) -> str:
    names = "".join(f" -{'l' if name.startswith('--') else 's'} {name.lstrip('-')}" for name in option.names)
    takes = ""
    if option.values:
        takes = (" -r" if option.values[0].kind == "file" else " -x") + _argument(option.values[0])
    return f"{names}{takes} -d {_quote(option.help)}"


def _argument(value: Value) -> str:
    if value.kind == "file":
        return " -F"
    if value.kind == "directory":
        return " -a '(__fish_complete_directories)'"
    if value.kind == "words":
        return f" -a {_quote(' '.join(value.words))}"
    return f" -a '(__mcproxy_names {value.words[0]})'" if value.kind == "names" else ""


def _path(command: Command) -> str:
    return "".join(f" {word}" for word in command.path)


def _quote(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
