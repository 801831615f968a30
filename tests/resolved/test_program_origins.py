"""explain shows the keys of each of several programs."""

from pathlib import Path

from tests.conftest import Command

JOB = """
profile: msu
programs:
  server:
    command: [serve, "{port}"]
    gpus: 1
  client: {command: [ask], gpus: 1, needs: [server], main: true}
"""


def test_explain_shows_the_keys_of_each_program(folder: Path, command: Command) -> None:
    (folder / "job.yaml").write_text(JOB)
    lines = command("explain", "job.yaml").out.splitlines()
    assert [line.split()[1:] for line in lines if line.startswith("server: args")] == [
        ["args", "serve", "{env:SBATCHGEN_SERVER_PORT}", "job.yaml:4"]
    ]
    assert [line.split()[1:] for line in lines if line.startswith("client: needs")] == [
        ["needs", "server", "job.yaml:7"]
    ]
