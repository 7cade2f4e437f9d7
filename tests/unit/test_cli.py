"""The command: its verbs, its exit statuses, and that asking for help costs little."""

from __future__ import annotations

import errno
import os
import re
import subprocess
import sys
import types

import pytest

from edgeserve import __version__, cli
from edgeserve.config.gone import GONE
from edgeserve.errors import ConfigError


@pytest.fixture
def verb(monkeypatch):
    """A verb whose module is a stand-in; ``result`` is what its main returns or raises."""
    module = types.ModuleType("edgeserve_stand_in")
    module.result = 0
    module.seen = []

    def add_arguments(parser):
        parser.add_argument("file")
        parser.add_argument("--fast", action="store_true")

    def main(args):
        module.seen.append((args.file, args.fast))
        if isinstance(module.result, BaseException):
            raise module.result
        return module.result

    module.add_arguments, module.main = add_arguments, main
    monkeypatch.setitem(sys.modules, "edgeserve_stand_in", module)
    monkeypatch.setitem(cli.VERBS, "stand-in", cli.Verb("edgeserve_stand_in", "stands in"))
    return module


@pytest.mark.parametrize("status", [0, 1])
def test_a_verb_gets_its_arguments_and_gives_the_exit_status(verb, status):
    verb.result = status
    assert cli.main(["stand-in", "edge.toml", "--fast"]) == status
    assert verb.seen == [("edge.toml", True)]


def test_an_error_of_ours_is_one_line_and_status_2(verb, capsys):
    verb.result = ConfigError("edge.toml: [app.a] has no key 'x'")
    assert cli.main(["stand-in", "edge.toml"]) == 2
    out = capsys.readouterr()
    assert (out.out, out.err) == ("", "edgeserve: edge.toml: [app.a] has no key 'x'\n")


@pytest.mark.parametrize("name", [name for name in GONE if name.startswith("edgeserve ") and " --" not in name])
def test_a_command_that_went_says_what_to_use_instead(name, capsys):
    assert cli.main([*name.split()[1:], "edge.toml", "--fast"]) == 2
    out = capsys.readouterr()
    assert (out.out, out.err.count("\n")) == ("", 1)
    assert f"edgeserve: {name.split()[1]}: " in out.err and GONE[name] in out.err
    named = re.findall(r"'edgeserve (\w+)", GONE[name])
    assert set(named) <= set(cli.VERBS) and not set(named) & {
        gone.split()[1] for gone in GONE if " --" not in gone and " " in gone
    }


@pytest.mark.parametrize("name", [name for name in GONE if " --" in name])
def test_an_option_that_went_says_what_to_use_instead(name, capsys):
    *words, option = name.split()[1:]
    with pytest.raises(SystemExit) as ended:
        cli.main([*words, f"{option}=x"])
    assert ended.value.code == 2
    assert f"{option}: there is no such option any more; {GONE[name]}" in capsys.readouterr().err
    for new in re.findall(r"--[a-z-]+", GONE[name]):
        with pytest.raises(SystemExit):
            cli.main([*words, "--help"])
        assert new in capsys.readouterr().out


def test_a_bug_is_not_hidden(verb):
    verb.result = ZeroDivisionError("a bug")
    with pytest.raises(ZeroDivisionError):
        cli.main(["stand-in", "edge.toml"])


@pytest.mark.parametrize("words", ["init --schema", "top --device --count 1", "doctor --quick"])
def test_outputs_that_were_closed_before_the_start_take_everything(words):
    closed = ["sh", "-c", f'exec "$0" -m edgeserve {words} <&- >&- 2>&-', sys.executable]
    assert subprocess.run(closed, timeout=60).returncode in (0, words == "doctor --quick")


def test_ctrl_c_is_status_130(verb):
    verb.result = KeyboardInterrupt()
    assert cli.main(["stand-in", "edge.toml"]) == 130


@pytest.mark.parametrize("at", ["edgeserve.cli", *sorted(cli.VERBS)])
def test_ctrl_c_while_modules_are_imported_ends_quietly(at):
    """Also where a module takes it for another error."""
    verb, home = ("init", at) if at == "edgeserve.cli" else (at, cli.VERBS[at].module)
    code = f"""
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell ignores it for what it starts behind itself
class Interrupts:
    def find_spec(self, name, path=None, target=None):
        if name == {home!r}:
            try:
                os.kill(os.getpid(), signal.SIGINT)
            except KeyboardInterrupt:
                raise ImportError("the import failed") if name != "edgeserve.cli" else KeyboardInterrupt
sys.meta_path.insert(0, Interrupts())
from edgeserve.__main__ import main
sys.exit(main())
"""
    done = subprocess.run([sys.executable, "-c", code, verb, "--help"], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
def test_a_full_disk_is_a_sentence(verb, error, capsys):
    verb.result = OSError(error, os.strerror(error), "out.json")
    assert cli.main(["stand-in", "edge.toml"]) == 1
    assert capsys.readouterr().err == f"edgeserve: out.json cannot be written ({os.strerror(error)})\n"


def test_an_output_that_takes_nothing_more_is_a_sentence():
    command = [sys.executable, "-m", "edgeserve", "doctor", "--quick", "--json"]
    with open("/dev/full", "wb") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=120)
    assert done.returncode == 1 and done.stderr.splitlines()[-1].startswith("edgeserve: the output cannot be written")
    assert "Traceback" not in done.stderr and "Exception" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "a verb is missing"),
        (["surve"], "did you mean 'serve'?"),
        (["--verbose"], "--verbose: there is no such option"),
        (["stand-in"], "required: file"),
        (["stand-in", "edge.toml", "--fas"], "--fas: there is no such option; did you mean '--fast'?"),
        (["stand-in", "--fas"], "--fas: there is no such option; did you mean '--fast'?"),
        (["stand-in", "edge.toml", "--fast=1"], "--fast"),
    ],
)
def test_wrong_usage_is_status_2_and_says_what_was_meant(verb, arguments, says, capsys):
    with pytest.raises(SystemExit) as caught:
        cli.main(arguments)
    assert caught.value.code == 2
    err = capsys.readouterr().err
    assert "usage: edgeserve" in err and says in err and verb.seen == []


def test_what_stands_behind_two_dashes_is_no_option(verb):
    assert cli.main(["stand-in", "--", "--fas"]) == 0
    assert verb.seen == [("--fas", False)]


VERBS_MAX, OPTIONS_MAX = 14, 110
"""The most verbs and options that a person can look through; a new one replaces one that is used less."""


def test_the_surface_stays_small():
    count = 0
    for name in cli.VERBS:
        parser, _ = cli.verb_parser(name)
        count += sum(bool(action.option_strings) and action.dest != "help" for action in parser._actions)
    assert len(cli.VERBS) <= VERBS_MAX and count <= OPTIONS_MAX, (len(cli.VERBS), count)


def test_help_and_version_import_no_verb():
    code = (
        "import sys; from edgeserve import cli\n"
        "try: cli.main(sys.argv[1:])\n"
        "except SystemExit: pass\n"
        "print(sorted(name for name in sys.modules if name.startswith(('edgeserve.', 'numpy', 'zmq', 'rich'))))"
    )
    for option in ("--help", "--version"):
        done = subprocess.run(
            [sys.executable, "-c", code, option], capture_output=True, text=True, timeout=60, check=True
        )
        *shown, modules = done.stdout.splitlines()
        at_first = ["cli", "commands", "commands.parser", "config", "config.gone"]
        at_first += ["config.installed", "config.plain_text", "errors"]
        assert modules == str([f"edgeserve.{name}" for name in at_first])
        assert shown == [f"edgeserve {__version__}"] if option == "--version" else len(shown) > len(cli.VERBS)


def test_output_with_a_closed_reader_is_no_traceback(tmp_path):
    """``edgeserve top --json | head``"""
    (tmp_path / "wordy.py").write_text(
        "def add_arguments(parser):\n    pass\n\n\ndef main(args):\n    print('word\\n' * 100_000)\n    return 0\n"
    )
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r}); from edgeserve import cli; "
        "cli.VERBS = {'talk': cli.Verb('wordy', 'talks')}; sys.exit(cli.main(['talk']))"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as talker:
        assert talker.stdout.readline() == b"word\n"
        talker.stdout.close()
        assert talker.stderr.read() == b""
    assert talker.returncode == 141


def test_the_package_is_a_command_too():
    done = subprocess.run([sys.executable, "-m", "edgeserve", "--version"], capture_output=True, check=True, text=True)
    assert done.stdout.startswith("edgeserve ")
