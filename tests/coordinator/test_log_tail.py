"""The logs of a local cluster, on one screen."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

from typer.testing import CliRunner

from coordinator.cli import app
from coordinator.log_tail import LogTail, log_files
from coordinator.run_state import ClusterState, InstanceState, write_state

if TYPE_CHECKING:
    from pathlib import Path


def a_run_dir(where: Path, **logs: str) -> Path:
    (where / "logs").mkdir(parents=True)
    instances = {}
    for name, text in logs.items():
        path = where / "logs" / f"{name}.log"
        path.write_text(text)
        instances[name] = InstanceState(role="colocated", model="m", url="", log=str(path))
    state = ClusterState(
        config="a.yaml",
        url=None,
        models=[],
        supervisor_pid=1,
        supervisor_ticks=None,
        since_unix_s=0.0,
        instances=instances,
    )
    write_state(where, state)
    return where


def logs(run_dir: Path, *arguments: str) -> tuple[int, list[str], str]:
    result = CliRunner().invoke(app, ["logs", *arguments, "--run-dir", str(run_dir)])
    return result.exit_code, result.stdout.splitlines(), result.stderr


def test_all_logs_say_whose_each_line_is_and_one_log_is_left_as_it_is(tmp_path: Path) -> None:
    where = a_run_dir(tmp_path, small="one\ntwo\n", coordinator="ready\n")
    both = [*("small       | one", "small       | two"), "coordinator | ready"]
    assert logs(where) == (0, both, "")
    assert logs(where, "small", "-n", "1") == (0, ["two"], "")
    assert logs(where, "small", "-n", "0") == (0, [], "")


def test_the_supervisors_log_counts_too(tmp_path: Path) -> None:
    where = a_run_dir(tmp_path, small="one\n")
    (where / "logs" / "supervisor.log").write_text("started\n")
    assert list(log_files(where)) == ["small", "supervisor"]


def test_a_log_that_is_not_there_is_not_found(tmp_path: Path) -> None:
    where = a_run_dir(tmp_path, small="one\n")
    code, out, error = logs(where, "large")
    assert (code, out, "there are ['small']" in error) == (4, [], True)
    code, out, error = logs(tmp_path / "other")
    assert (code, out, "no cluster was started" in error) == (4, [], True)


def test_following_a_cluster_that_has_ended_ends(tmp_path: Path) -> None:
    assert logs(a_run_dir(tmp_path, small="one\ntwo"), "-f")[:2] == (0, ["one"])


def test_news_come_as_whole_lines(tmp_path: Path) -> None:
    where = a_run_dir(tmp_path, small="one\ntw")
    with closing(LogTail(log_files(where))) as tail:
        assert list(tail.last(5)) == ["one"]
        assert list(tail.news()) == []
        with (where / "logs" / "small.log").open("a") as file:
            file.write("o\nthree\nfou")
        assert list(tail.news()) == ["two", "three"]


def test_an_instance_that_was_started_again_is_read_from_its_first_line(tmp_path: Path) -> None:
    where = a_run_dir(tmp_path, small="one\ntwo\n")
    log = where / "logs" / "small.log"
    with closing(LogTail(log_files(where))) as tail:
        assert list(tail.last(1)) == ["two"]
        with log.open("a") as old:  # as the old process does: its last words are not lost
            log.unlink()
            assert list(tail.news()) == []
            old.write("last words\n")
        log.write_text("again\n")
        assert list(tail.news()) == ["last words", "again"]
        assert list(tail.news()) == []
