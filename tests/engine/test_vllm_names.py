"""The list of vLLM's internal names is complete, and a tree that differs is noticed."""

from __future__ import annotations

import builtins
from typing import TYPE_CHECKING

import pytest

from engine.vllm_names import TABLE, Finding, Status, Use, findings, read_table
from engine.vllm_source import SourceTree
from tests.engine import vllm_uses

if TYPE_CHECKING:
    from pathlib import Path

needs_vllm = pytest.mark.vllm_cpu
PLAIN = {name for kind in (str, list, dict, set, tuple) for name in dir(kind)} | set(dir(builtins))


@needs_vllm
def test_every_name_of_vllm_that_our_sources_use_is_listed_and_no_other() -> None:
    pytest.importorskip("vllm", reason="the engine extra is not installed")
    expected, listed = vllm_uses.table(vllm_uses.scan()), TABLE.read_text()
    assert expected == listed, "run `python -m tests.engine.vllm_uses --write`"


@needs_vllm
def test_no_attribute_is_used_on_an_object_whose_type_cannot_be_told() -> None:
    """Else a name of vLLM's could hide there: annotate where the object comes from."""
    pytest.importorskip("vllm", reason="the engine extra is not installed")
    unknown = {(m, name) for m, name in vllm_uses.scan().unknown if name not in PLAIN}
    assert not unknown - {("engine.intake", "__name__"), ("engine.kv_pool", "__dict__")}


@needs_vllm
def test_our_block_queue_offers_all_that_vllm_has_in_its_own() -> None:
    """vLLM calls it without knowing the difference; no name of ours would show a new method."""
    tree = vllm_uses.trees()
    theirs = tree.find_class("vllm.v1.core.kv_cache_utils", "FreeKVCacheBlockQueue")
    ours = tree.find_class("engine.kv_blocks", "TwoClassQueue")
    assert theirs is not None
    assert ours is not None
    called = {name for name, member in theirs.members.items() if member.parameters is not None}
    assert called | {"num_free_blocks"} <= ours.members.keys()


@pytest.mark.parametrize(
    "line",
    [
        "running",
        "add(request)",
        "add(request, now_s, *, drop)",
        "override add(request, now_s)",
        "add(request, ...)",
        "add(*, drop)",
        "add()",
    ],
)
def test_a_line_of_the_list_is_read_as_it_was_written(line: str) -> None:
    (use,) = read_table(f"# a comment\n\na.module Owner\n    {line}\n")
    assert (use.module, use.owner, use.line()) == ("a.module", "Owner", line)


THEIRS = """
import dataclasses
from vllm.base import Base as Renamed, helper
from vllm import base

class Scheduler(Renamed):
    limit: int = 1

    def __init__(self, config):
        self.running = []
        self.waiting, self.skipped = [], []

    @property
    def queue(self): ...

    def schedule(self, throttle=False): ...
    def free(self, request, *, now, reason=None, extra): ...

Alias = Scheduler

@dataclasses.dataclass
class Output(Renamed):
    tokens: int
    reason: str = ""
"""


def status_of(tmp_path: Path, lines: str) -> Finding:
    package = tmp_path / "vllm"
    package.mkdir(exist_ok=True)
    (package / "__init__.py").write_text("if True:\n    from .sched import Scheduler\n")
    (package / "sched.py").write_text(THEIRS)
    (package / "base.py").write_text(
        "def helper(a): ...\n\nclass Base:\n    def inherited(self, a): ...\n"
    )
    (found,) = findings(SourceTree(tmp_path), read_table(lines))
    return found


@pytest.mark.parametrize(
    ("owner", "line", "status"),
    [
        ("vllm.sched Scheduler", "running", Status.PRESENT),
        ("vllm.sched Scheduler", "skipped", Status.PRESENT),
        ("vllm.sched Scheduler", "limit", Status.PRESENT),
        ("vllm.sched Scheduler", "queue", Status.PRESENT),
        ("vllm.sched Scheduler", "inherited(a)", Status.PRESENT),
        ("vllm Scheduler", "running", Status.PRESENT),
        ("vllm.sched Alias", "running", Status.PRESENT),
        ("vllm.sched Scheduler", "gone", Status.MISSING),
        ("vllm.sched Gone", "running", Status.MISSING),
        ("vllm.gone Scheduler", "running", Status.MISSING),
        ("vllm.sched", "helper(a)", Status.PRESENT),
        ("vllm.sched", "Scheduler", Status.PRESENT),
        ("vllm.base", "helper(a)", Status.PRESENT),
        ("vllm.base", "helper(b)", Status.CHANGED),
        ("vllm.base", "gone", Status.MISSING),
        ("vllm.sched Scheduler", "schedule()", Status.PRESENT),
        ("vllm.sched Scheduler", "override schedule(throttle)", Status.PRESENT),
        ("vllm.sched Scheduler", "override schedule()", Status.CHANGED),
        ("vllm.sched Scheduler", "schedule(...)", Status.PRESENT),
        ("vllm.sched Scheduler", "schedule(*, throttle)", Status.PRESENT),
        ("vllm.sched Scheduler", "schedule(*, other)", Status.CHANGED),
        ("vllm.sched Scheduler", "free(request, *, extra, now)", Status.PRESENT),
        ("vllm.sched Scheduler", "free(request, *, now)", Status.CHANGED),
        ("vllm.sched Scheduler", "free(request, now)", Status.CHANGED),
        ("vllm.sched Scheduler", "free(job, *, extra, now)", Status.CHANGED),
        ("vllm.sched Output", "__init__(*, tokens)", Status.PRESENT),
        ("vllm.sched Output", "__init__(*, reason, tokens)", Status.PRESENT),
        ("vllm.sched Output", "__init__()", Status.CHANGED),
        ("vllm.sched Output", "tokens", Status.PRESENT),
    ],
)
def test_what_a_source_tree_has(tmp_path: Path, owner: str, line: str, status: Status) -> None:
    assert status_of(tmp_path, f"{owner}\n    {line}\n").status is status


def test_a_change_says_what_vllm_takes_now(tmp_path: Path) -> None:
    found = status_of(tmp_path, "vllm.sched Scheduler\n    override schedule()\n")
    assert found.detail == "takes (throttle), which our override does not"
    assert found.use == Use(
        module="vllm.sched", owner="Scheduler", name="schedule", positional=(), override=True
    )
