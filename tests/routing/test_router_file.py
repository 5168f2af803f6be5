"""What is written is read back; what is not ours is refused and said why."""

from __future__ import annotations

import io
import pickle
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pytest

from routing.bilinear import Fitted, initial_factors
from routing.embedders import EmbedderSpec
from routing.router_file import (
    MAX_BYTES,
    Drift,
    Header,
    RouterFileInvalid,
    TrainedRouter,
    read_router,
    write_router,
)
from routing.step_vectors import vector_width

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

DIMENSION = 4
WIDTH = vector_width(DIMENSION)
Entries = dict[str, Any]


def a_router(**header: Any) -> TrainedRouter:
    given: dict[str, Any] = {
        "models": ("small", "large"),
        "embedder": EmbedderSpec("minilm", dimension=DIMENSION),
        "drift": Drift(0.0, 0.5, 1.0),
        "samples": 10,
        "tasks": 5,
        "seed": 0,
        "auc": 0.75,
    }
    folds = [
        Fitted(
            mean=np.full(WIDTH, float(seed)),
            scale=np.full(WIDTH, 2.0),
            factors=initial_factors(WIDTH, 3, seed),
        )
        for seed in range(2)
    ]
    return TrainedRouter(header=Header(**(given | header)), folds=tuple(folds))


def changed(path: Path, change: Callable[[Entries], object]) -> None:
    with np.load(path) as archive:
        entries = {name: archive[name] for name in archive.files}
    change(entries)
    data = io.BytesIO()
    np.savez(data, **entries)
    path.write_bytes(data.getvalue())


def header_with(**fields: Any) -> Callable[[Entries], object]:
    def change(entries: Entries) -> None:
        header = msgspec.json.decode(entries["header"].tobytes()) | fields
        entries["header"] = np.frombuffer(msgspec.json.encode(header), np.uint8)

    return change


def entry(name: str, value: Any) -> Callable[[Entries], object]:
    return lambda entries: entries.update({name: value})


def test_a_router_is_read_back_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "router.npz"
    router = a_router()
    write_router(path, router)
    back = read_router(path)
    assert back.header == router.header
    vector = np.arange(float(WIDTH))
    assert back.logit(vector) == router.logit(vector)
    assert [file.name for file in tmp_path.iterdir()] == ["router.npz"]


def test_the_same_router_is_the_same_bytes(tmp_path: Path) -> None:
    for name in ("a.npz", "b.npz"):
        write_router(tmp_path / name, a_router())
    assert (tmp_path / "a.npz").read_bytes() == (tmp_path / "b.npz").read_bytes()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (header_with(format="other"), "it is other version 1, this program reads"),
        (header_with(version=2), "version 2, this program reads .* version 1; train it again"),
        (header_with(extra=1), "unknown field `extra`"),
        (header_with(models=["small", "small"]), "its two models are both 'small'"),
        (header_with(drift={"start": 0, "share": 0, "spread": 0}), "drift.spread must be > 0"),
        (header_with(view={"texts": ["tail"]}), "it looks at prompts as"),
        (header_with(embedder={"kind": "minilm", "dimension": 5}), "mean has shape"),
        (header_with(embedder={"kind": "magic"}), "Invalid enum value 'magic'"),
        (entry("scale", np.zeros((2, WIDTH))), "scale must be > 0"),
        (entry("models", np.zeros((2, 2, 3))), "no model's factors all 0"),
        (entry("bias", np.full((2, 1), np.nan)), "bias must hold finite float64"),
        (entry("bias", np.zeros((2, 1), np.float32)), "bias must hold finite float64"),
        (entry("bias", np.zeros((2, 2))), r"bias has shape \(2, 2\), expected \(2, 1\)"),
        (entry("weights", np.zeros(3)), "has shape"),
        (entry("weights", np.zeros((0, 3))), "has shape"),
        (entry("more", np.zeros(1)), "it holds"),
        (lambda entries: entries.pop("mean"), "it holds"),
        (entry("mean", np.array([{}], object)), "pickle"),
        (entry("header", np.frombuffer(b"{oops", np.uint8)), "is no router file"),
        (entry("mean", np.zeros(MAX_BYTES // 8 + 1)), "must be of 1 to"),
    ],
)
def test_a_file_that_is_not_right_is_refused(
    tmp_path: Path, change: Callable[[Entries], object], message: str
) -> None:
    path = tmp_path / "router.npz"
    write_router(path, a_router())
    changed(path, change)
    with pytest.raises(RouterFileInvalid, match=message) as raised:
        read_router(path)
    assert str(path) in str(raised.value)


def test_a_file_that_unpacks_to_more_than_is_allowed_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "router.npz"
    np.savez_compressed(path, mean=np.zeros(MAX_BYTES // 8 + 1))
    assert path.stat().st_size < MAX_BYTES
    with pytest.raises(RouterFileInvalid, match="it unpacks to"):
        read_router(path)


@pytest.mark.parametrize("data", [b"", b"oops", pickle.dumps({"a": 1}), b"PK\x03\x04oops"])
def test_what_is_no_archive_is_refused(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "router.npz"
    path.write_bytes(data)
    with pytest.raises(RouterFileInvalid, match="is no router file"):
        read_router(path)


@pytest.mark.parametrize("share", [0.1, 0.3, 0.5, 0.7, 0.9])
def test_a_file_that_was_cut_off_is_refused(tmp_path: Path, share: float) -> None:
    path = tmp_path / "router.npz"
    write_router(path, a_router())
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * share)])
    with pytest.raises(RouterFileInvalid):
        read_router(path)


def test_a_changed_byte_is_refused_or_changes_nothing(tmp_path: Path) -> None:
    """Some bytes of an archive, such as its dates, mean nothing to us."""
    path = tmp_path / "router.npz"
    router = a_router()
    write_router(path, router)
    data, vector = path.read_bytes(), np.arange(float(WIDTH))
    for at in range(0, len(data), 41):
        path.write_bytes(data[:at] + bytes([data[at] ^ 0xFF]) + data[at + 1 :])
        try:
            back = read_router(path)
        except RouterFileInvalid:
            continue
        assert (back.header, back.logit(vector)) == (router.header, router.logit(vector)), at


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(RouterFileInvalid, match=r"no\.npz: cannot be read"):
        read_router(tmp_path / "no.npz")
