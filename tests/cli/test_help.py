"""Every command's help has an example, and the example is one that the command would take."""

import re
import shlex

import click
import pytest
from typer.main import get_command

from tacit.cli import app


def leaves(command: click.Command, path: tuple[str, ...] = ()):
    if isinstance(command, click.Group):
        for name, part in command.commands.items():
            yield from leaves(part, (*path, name))
    else:
        yield " ".join(path), command


COMMANDS = dict(leaves(get_command(app)))


def test_the_commands_are_found():
    assert {"run", "reproduce", "silo serve", "server run", "shuffler init"} <= set(COMMANDS)


@pytest.mark.parametrize("path", COMMANDS)
def test_the_help_has_an_example_that_parses(path):
    command = COMMANDS[path]
    found = re.search(rf"Example: tacit {path}(.*)", command.help or "")
    assert found, f"tacit {path} --help has no example"
    context = click.Context(command, info_name=path)
    parser = command.make_parser(context)
    options, arguments, _ = parser.parse_args(shlex.split(found[1]))
    needed = [p for p in command.params if p.required and options.get(p.name) is None]
    assert not needed, f"the example of tacit {path} lacks {needed}"
    assert arguments == [], arguments


@pytest.mark.parametrize("path", COMMANDS)
def test_every_option_says_what_it_is(path):
    for parameter in COMMANDS[path].params:
        if isinstance(parameter, click.Option):
            assert parameter.help, f"--{parameter.name} of tacit {path}"
