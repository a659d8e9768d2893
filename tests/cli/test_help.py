"""The help of every command and group has an example, and the example is one that the command would take."""

import re
import shlex

import click
import pytest
from typer.main import get_command

from tacit.cli import app


def found_in(command: click.Command, path: tuple[str, ...] = ()):
    yield " ".join(path), command
    if isinstance(command, click.Group):
        for name, part in command.commands.items():
            yield from found_in(part, (*path, name))


EVERYTHING = dict(found_in(get_command(app)))
COMMANDS = {path: command for path, command in EVERYTHING.items() if not isinstance(command, click.Group)}
GROUPS = {path: command for path, command in EVERYTHING.items() if isinstance(command, click.Group)}


def test_the_commands_are_found():
    assert {"run", "reproduce", "silo serve", "server run", "shuffler init"} <= set(COMMANDS)
    assert set(GROUPS) == {"", "consortium", "schema", "silo", "server", "shuffler"}


@pytest.mark.parametrize("path", COMMANDS)
def test_the_help_has_an_example_that_parses(path):
    command = COMMANDS[path]
    found = re.search(rf"Example: tacit {path}(.*)", command.help or "")
    assert found, f"tacit {path} --help has no example"
    check_example(path, command, found[1])


@pytest.mark.parametrize("path", GROUPS)
def test_the_help_of_a_group_has_an_example_of_one_of_its_commands(path):
    found = re.search(r"Example: tacit (.*)", GROUPS[path].help or "")
    assert found, f"tacit {path} --help has no example"
    own = [name for name in COMMANDS if name.startswith(path) and f"{found[1]} ".startswith(f"{name} ")]
    assert own, f"the example of tacit {path} is not one of its commands"
    check_example(own[0], COMMANDS[own[0]], found[1].removeprefix(own[0]))


@pytest.mark.parametrize("path", EVERYTHING)
@pytest.mark.parametrize("width", [40, 80])
def test_an_example_can_be_pasted_from_the_help_as_it_is_shown(path, width):
    command = EVERYTHING[path]
    (example,) = re.findall(r"Example: tacit .*", command.help or "")
    shown = command.get_help(click.Context(command, info_name=path, terminal_width=width))
    assert [line.strip() for line in shown.splitlines() if "Example:" in line] == [example]
    assert "\b" not in shown


def check_example(path: str, command: click.Command, words: str) -> None:
    context = click.Context(command, info_name=path)
    parser = command.make_parser(context)
    options, arguments, _ = parser.parse_args(shlex.split(words))
    needed = [p for p in command.params if p.required and options.get(p.name) is None]
    assert not needed, f"the example of tacit {path} lacks {needed}"
    assert arguments == [], arguments


@pytest.mark.parametrize("path", COMMANDS)
def test_every_option_says_what_it_is(path):
    for parameter in COMMANDS[path].params:
        if isinstance(parameter, click.Option):
            assert parameter.help, f"--{parameter.name} of tacit {path}"
