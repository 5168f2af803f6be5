"""A FAKE vLLM 0.32 server, for load and fault tests only: it computes nothing.

What is real about it: the endpoints, the shapes of answers and errors, block-aligned prefix hits
per `cache_salt`, and hand-offs that can be read once. Its text depends on the model and on every
prompt token, so a wrong prompt gives another text.

    app = create_app(model="small", role="prefill")
    async with running(app) as url: ...        # or: with serve_in_thread(app) as url
    app.state.engine.requests, .faults.hang(), .cancelled, .pinned_handoffs

`python -m bench.fake_engine --help` runs one as a process."""

from __future__ import annotations

from bench.fake_engine.app import FakeApp
from bench.fake_engine.model import EngineSettings, FakeEngine, RecordedRequest
from bench.fake_engine.server import running, serve_in_thread
from policy.vocabulary import Role

__all__ = [
    "EngineSettings",
    "FakeApp",
    "FakeEngine",
    "RecordedRequest",
    "create_app",
    "running",
    "serve_in_thread",
]


def create_app(
    *,
    model: str,
    role: Role | str = Role.COLOCATED,
    output_tokens: int = 8,
    delay_s: float = 0.0,
    chunk_delay_s: float = 0.0,
    prefill_s_per_token: float = 0.0,
    max_model_len: int = 8192,
    block_size: int = 32,
    vocabulary: str = "words",
    records: bool = True,
) -> FakeApp:
    """A fake engine as an ASGI application; `app.state.engine` is its FakeEngine."""
    settings = EngineSettings(
        model=model,
        role=Role(role),
        output_tokens=output_tokens,
        delay_s=delay_s,
        chunk_delay_s=chunk_delay_s,
        prefill_s_per_token=prefill_s_per_token,
        max_model_len=max_model_len,
        block_size=block_size,
        vocabulary=vocabulary,
        records=records,
    )
    return FakeApp(settings)
