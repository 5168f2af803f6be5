"""`shadowprefill tune`: what is sent to which engine, and how the answers are shown."""

from __future__ import annotations

import contextlib
import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from typer.testing import CliRunner

from bench.fake_engine import create_app, serve_in_thread
from configs.load import load_config
from coordinator.cli import app
from coordinator.engine_control import changes_of, tune
from engine.control import CONTROL_KEY, ControlRefused
from engine.marks import SECRET_KEY
from tests.free_ports import free_ports

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

RUNNER = CliRunner()


@contextlib.contextmanager
def an_engine(stop_reason: str | None, asked: list[Any]) -> Iterator[str]:
    """Answers every request at once with this stop reason; its URL."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
            choice = {"index": 0, "text": "", "finish_reason": "stop", "stop_reason": stop_reason}
            body = json.dumps({"choices": [choice]}).encode()
            self.send_response(200)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def a_cluster(folder: Path, **urls: str) -> Path:
    """One colocated instance per URL; each serves a model of its own name."""
    ports = iter(free_ports(len(urls) + 1))
    model = {"path": "fake", "max_model_len": 8192, "slo": {"ttft_s": 5.0, "tpot_s": 1.0}}
    document = {
        "profile": "cpu",
        "models": dict.fromkeys(urls, model),
        "instances": {
            name: {"model": name, "role": "colocated", "port": next(ports), "attach_url": url}
            for name, url in urls.items()
        },
        "coordinator": {"port": next(ports), "engine_secret": "ours"},
    }
    path = folder / "cluster.yaml"
    path.write_text(yaml.safe_dump(document, sort_keys=False))
    return path


def test_every_engine_is_asked_and_says_what_it_made_of_it(tmp_path: Path) -> None:
    asked: list[Any] = []
    with an_engine("control_applied", asked) as good, an_engine("control_refused: no", []) as bad:
        config = str(a_cluster(tmp_path, good=good, bad=bad))
        all_of_them = RUNNER.invoke(app, ["tune", config, "controller=off", "kv_cap_share=0.1"])
        one = RUNNER.invoke(app, ["tune", config, "--instance", "good", "beta=0.5"])
    assert all_of_them.exit_code == 1
    assert all_of_them.output.splitlines() == [
        "good: control_applied",
        "bad: control_refused: no",
    ]
    assert (one.exit_code, one.output) == (0, "good: control_applied\n")
    xargs = asked[0]["vllm_xargs"]
    assert json.loads(xargs[CONTROL_KEY]) == {
        "version": 1,
        "instance": "good",
        "controller": "off",
        "kv_cap_share": 0.1,
    }
    assert xargs[SECRET_KEY] == "ours"
    assert (asked[0]["model"], asked[0]["max_tokens"]) == ("good", 1)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["controller"], "'controller' must be FIELD=VALUE"),
        (["beta=4"], "beta must be `float` <= 1.0, got 4"),
        (["port=4"], "['port'] cannot be changed"),
        (["beta=[", "delta=0"], "the value is not YAML"),
        (["beta=0.1", "--instance", "nobody"], "no instance 'nobody'; instances are ['a', 'b']"),
        (["trace_path=t.jsonl"], "trace_path must contain {instance} for several instances"),
        (["trace_path=t.txt"], "trace_path must be an absolute path that ends in .jsonl"),
    ],
)
def test_what_no_engine_would_take_is_not_sent(
    tmp_path: Path, arguments: list[str], complaint: str
) -> None:
    asked: list[Any] = []
    with an_engine("control_applied", asked) as a, an_engine("control_applied", asked) as b:
        config = str(a_cluster(tmp_path, a=a, b=b))
        result = RUNNER.invoke(app, ["tune", config, *arguments])
    assert result.exit_code == 2
    assert "nothing was sent: " in result.stderr
    assert complaint in result.stderr
    assert asked == []


def test_each_instance_gets_a_trace_of_its_own_where_the_command_was_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    asked: list[Any] = []
    with an_engine("control_applied", asked) as a, an_engine("control_applied", asked) as b:
        config = load_config(a_cluster(tmp_path, a=a, b=b))
        tune(config, changes_of(["trace_path=out/{instance}.jsonl"]))
        tune(config, changes_of(["trace_path="]))
    paths = [json.loads(body["vllm_xargs"][CONTROL_KEY])["trace_path"] for body in asked]
    assert sorted(paths[:2]) == [f"{tmp_path}/out/{name}.jsonl" for name in "ab"]
    assert paths[2:] == ["", ""]


def test_an_engine_that_is_not_ours_or_not_there_is_told_apart(tmp_path: Path) -> None:
    (closed,) = free_ports(1)
    fake = create_app(model="stock")
    fake.state.engine.takes_control = False
    with serve_in_thread(fake) as stock:
        path = a_cluster(tmp_path, stock=stock, gone=f"http://127.0.0.1:{closed}")
        answers = {one.instance: one for one in tune(load_config(path), {"beta": 0.5})}
    assert not answers["stock"].applied
    assert "none of our schedulers" in answers["stock"].text
    assert not answers["gone"].applied
    assert "Connection refused" in answers["gone"].text


def test_values_are_yaml_as_in_the_configuration() -> None:
    assert changes_of(["controller=off", "n_min_tokens=8", "beta=0.5"]) == {
        "controller": "off",
        "n_min_tokens": 8,
        "beta": 0.5,
    }
    with pytest.raises(ControlRefused):
        changes_of(["beta"])
