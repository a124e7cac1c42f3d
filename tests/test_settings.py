"""Where a setting comes from, over the versions of pytest and its kinds of configuration file."""

from __future__ import annotations

import pytest

from testkit._settings import ini_name

NATIVE_TOML = pytest.version_tuple[0] >= 9
# Between the two, pytest takes a native TOML number only for a key that is declared a number.
ANY_SCALAR = pytest.version_tuple[:2] >= (9, 2)

# A plugin in miniature. It prints what `resolve` says, so that a run can be read.
PLUGIN = """
    from testkit import _settings

    def pytest_addoption(parser):
        _settings.add_option(parser, "--demo-size", metavar="N")
        _settings.add_option(parser, "--demo-list", ini_type="linelist", action="append")
        _settings.add_option(parser, "--demo-quick", ini=False, action="store_true")

    def pytest_report_header(config):
        parse = lambda raw, source: raw
        lines = [
            f"{flag}={setting.value!r} {setting.source}"
            for flag in ("--demo-size", "--demo-list", "--demo-quick")
            for setting in [_settings.resolve(config, flag, parse, "nothing")]
        ]
        marked = _settings.resolve(config, "--demo-size", parse, "nothing", marker=4)
        return [*lines, f"marker={marked.value!r} {marked.source}"]
"""

# Another plugin, with an option and an ini key that the demo plugin wants.
RIVAL = """
    def pytest_addoption(parser):
        parser.getgroup("rivals").addoption("--demo-size")
"""


@pytest.fixture
def demo(pytester: pytest.Pytester) -> pytest.Pytester:
    pytester.makepyfile(demo_plugin=PLUGIN, test_one="def test_one(): pass")
    pytester.syspathinsert()
    return pytester


def test_the_ini_key_is_the_option_with_underscores() -> None:
    assert ini_name("--pairwise-fail-under") == "pairwise_fail_under"
    assert ini_name("--no-pairwise") == "no_pairwise"


def test_without_any_source_the_default_speaks(demo: pytest.Pytester) -> None:
    lines = demo.runpytest("-p", "demo_plugin").stdout
    lines.fnmatch_lines(
        ["--demo-size='nothing' default", "--demo-list='nothing' default", "--demo-quick='nothing' default"]
    )
    lines.fnmatch_lines(["marker=4 from the marker"])


def test_the_command_line_wins_over_ini_and_says_so(demo: pytest.Pytester) -> None:
    demo.makeini("[pytest]\ndemo_size = 1\n")
    result = demo.runpytest("-p", "demo_plugin", "--demo-size=2", "--demo-list=x", "--demo-list=y", "--demo-quick")
    result.stdout.fnmatch_lines(
        [
            "--demo-size='2' from --demo-size",
            "--demo-list=?'x', 'y'? from --demo-list",
            "--demo-quick=True from --demo-quick",
        ]
    )


def test_an_ini_override_on_the_command_line_is_ini(demo: pytest.Pytester) -> None:
    demo.makeini("[pytest]\ndemo_size = 1\n")
    result = demo.runpytest("-p", "demo_plugin", "-o", "demo_size=5")
    result.stdout.fnmatch_lines(["--demo-size='5' from ini demo_size"])


def test_an_empty_ini_key_counts_as_absent(demo: pytest.Pytester) -> None:
    demo.makeini("[pytest]\ndemo_size =\ndemo_list =\n")
    result = demo.runpytest("-p", "demo_plugin")
    result.stdout.fnmatch_lines(["--demo-size='nothing' default", "--demo-list='nothing' default"])


INI = "[pytest]\ndemo_size = {size}\ndemo_list =\n    gc\n    a.b:c\n"
TOML = "[{table}]\ndemo_size = {size}\ndemo_list = ['gc', 'a.b:c']\n"
native = pytest.mark.skipif(not NATIVE_TOML, reason="pytest reads this table since 9.0")
any_scalar = pytest.mark.skipif(not ANY_SCALAR, reason="pytest takes an unquoted value for such a key since 9.2")


@pytest.mark.parametrize(
    ("file", "text"),
    [
        pytest.param("pytest.ini", INI.format(size=3), id="pytest.ini"),
        pytest.param("pyproject.toml", TOML.format(table="tool.pytest.ini_options", size=3), id="ini_options-int"),
        pytest.param("pyproject.toml", TOML.format(table="tool.pytest.ini_options", size="'3'"), id="ini_options-str"),
        pytest.param("pyproject.toml", TOML.format(table="tool.pytest", size="'3'"), id="native-str", marks=native),
        pytest.param("pyproject.toml", TOML.format(table="tool.pytest", size=3), id="native-int", marks=any_scalar),
        pytest.param("pytest.toml", TOML.format(table="pytest", size=3), id="pytest.toml-int", marks=any_scalar),
    ],
)
def test_every_kind_of_configuration_file_is_heard(demo: pytest.Pytester, file: str, text: str) -> None:
    (demo.path / file).write_text(text)
    result = demo.runpytest("-p", "demo_plugin", "-W", "error")
    assert result.ret == 0
    result.stdout.fnmatch_lines(
        ["--demo-size='3' from ini demo_size", "--demo-list=?'gc', 'a.b:c'? from ini demo_list"]
    )


@any_scalar
@pytest.mark.parametrize(
    ("written", "read"), [("true", "'true'"), ("false", "'false'"), ("0", "'0'"), ("2.5", "'2.5'")]
)
def test_a_native_value_reaches_the_parser_as_text(demo: pytest.Pytester, written: str, read: str) -> None:
    (demo.path / "pyproject.toml").write_text(f"[tool.pytest]\ndemo_size = {written}\n")
    result = demo.runpytest("-p", "demo_plugin")
    result.stdout.fnmatch_lines([f"--demo-size={read} from ini demo_size"])


@native
@pytest.mark.parametrize("value", ["[1, 2]", *([] if ANY_SCALAR else ["3"])])
def test_a_native_value_that_cannot_be_read_is_a_usage_error(demo: pytest.Pytester, value: str) -> None:
    (demo.path / "pyproject.toml").write_text(f"[tool.pytest]\ndemo_size = {value}\n")
    result = demo.runpytest("-p", "demo_plugin")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: *demo_size*"])
    result.stderr.no_fnmatch_line("*Traceback*")


@pytest.mark.parametrize(
    ("rival", "owner"),
    [
        pytest.param(RIVAL, "rival", id="other-group"),
        pytest.param("def pytest_addoption(parser): parser.addoption('--demo-size')", "rival", id="no-group"),
        pytest.param(RIVAL.replace("rivals", "testkit"), "rival", id="our-group"),
        pytest.param(
            "def pytest_addoption(parser): parser.getgroup('rivals').addoption('--demo' + '-size' * len('x'))",
            "option group 'rivals'",
            id="spelled-at-run-time",
        ),
    ],
)
def test_an_option_that_is_taken_names_both_plugins(demo: pytest.Pytester, rival: str, owner: str) -> None:
    demo.makepyfile(rival=rival)
    result = demo.runpytest("-p", "rival", "-p", "demo_plugin")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    wanted = (
        f"ERROR: testkit: option --demo-size of demo_plugin is already taken by {owner}; "
        "leave ours out with -p no:demo_plugin"
    )
    assert wanted in result.stderr.lines


def test_an_ini_key_that_is_taken_names_both_plugins(demo: pytest.Pytester) -> None:
    demo.makepyfile(rival="def pytest_addoption(parser): parser.addini('demo_list', 'theirs')")
    result = demo.runpytest("-p", "rival", "-p", "demo_plugin")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: testkit: ini key demo_list of demo_plugin is already taken by rival; *"])


@pytest.mark.parametrize(("capability", "flag"), [("pairwise", "--pairwise-strength"), ("cleanup", "--cleanup-scope")])
def test_an_option_of_ours_that_is_taken_leaves_a_way_out(
    demo: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, capability: str, flag: str
) -> None:
    """As in real life: the entry point loads us after the rival."""
    monkeypatch.delenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD")
    demo.makepyfile(rival=RIVAL.replace("--demo-size", flag))
    plugin = f"testkit.{capability}.plugin"
    result = demo.runpytest_subprocess("-p", "rival")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    wanted = f"ERROR: testkit: option {flag} of {plugin} is already taken by rival; leave ours out with -p no:{plugin}"
    assert wanted in result.errlines
    assert demo.runpytest_subprocess("-p", "rival", "-p", f"no:{plugin}").ret == 0


@pytest.mark.parametrize("capability", ["pairwise", "cleanup"])
def test_each_capability_can_be_left_out_by_its_dotted_name(demo: pytest.Pytester, capability: str) -> None:
    plugin = f"testkit.{capability}.plugin"
    line = f"PLUGIN registered: <module '{plugin}' from *"
    demo.runpytest("-p", "testkit", "--trace-config").stdout.fnmatch_lines([line])
    demo.runpytest("-p", f"no:{plugin}", "-p", "testkit", "--trace-config").stdout.no_fnmatch_line(line)
