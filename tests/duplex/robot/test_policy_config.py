import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from duplex.cli import app
from duplex.config_sources import ConfigError, load_config


def load(options=None, *, file=None, **environ):
    return load_config(options or {}, file=file, environ=environ)


def test_options_on_the_command_line_are_read_as_in_yaml():
    options = ("horizon=8", "gain=0.5", "camera=wrist", "joints=[1, 2]", "url=http://h/?a=b", "x=")
    config = load({"policy": "my.policies:make", "policy_options": options})
    assert config.policy_options == {
        "horizon": 8,
        "gain": 0.5,
        "camera": "wrist",
        "joints": [1, 2],
        "url": "http://h/?a=b",
        "x": None,
    }


def test_options_from_the_environment_and_from_a_file(tmp_path):
    config = load(DUPLEX_POLICY="p:make", DUPLEX_POLICY_OPTIONS="horizon=8, camera=wrist")
    assert config.policy_options == {"horizon": 8, "camera": "wrist"}
    file = tmp_path / "c.yaml"
    file.write_text("policy: p:make\npolicy_options: {horizon: 8}\npolicy_python: /opt/python\n")
    config = load(file=file)
    assert (config.policy_options, config.policy_python) == ({"horizon": 8}, Path("/opt/python"))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"policy": "my.policies"}, "--policy: 'my.policies' is no factory"),
        ({"policy": "my policies:make"}, "--policy: "),
        ({"policy": "p:make", "policy_options": ["8"]}, "--policy-option: '8' is no option"),
        ({"policy": "p:make", "policy_options": ["a-b=8"]}, "--policy-option: "),
        ({"policy": "p:make", "policy_options": ["a=[1"]}, "--policy-option: 'a=[1' is no option"),
        ({"policy": "p:make", "policy_options": ["a=2026-01-01"]}, "--policy-option: "),
        ({"policy_options": ["a=1"]}, "--policy-option: no policy is set"),
        ({"policy_python": "python3"}, "--policy-python: no policy is set"),
        ({"robot_idle_timeout_s": 0}, "--robot-idle-timeout-s: "),
    ],
)
def test_what_is_wrong_is_named(options, said):
    with pytest.raises(ConfigError, match=re.escape(said)):
        load(options)


def test_the_command_explains_itself_and_names_its_errors(tmp_path):
    runner = CliRunner()
    assert "--replay" in runner.invoke(app, ["robot", "--help"], env={"COLUMNS": "200"}).output
    missing = runner.invoke(app, ["robot", "--replay", str(tmp_path / "no.npz")])
    assert missing.exit_code == 1
    assert "can't be read as NPZ" in missing.output.replace("\n", " ")
