"""The four formats, from tiny files that are written here; and every way in which one is wrong."""

from __future__ import annotations

import gzip
import os
from pathlib import Path

import numpy as np
import pytest

from bench.workloads.loaders import TraceFormat, load_trace
from bench.workloads.trace import TraceInvalid

AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.6805900,374,44
2023-11-16 18:15:50.9951690,396,109
"""
AZURE_2024 = """TIMESTAMP,ContextTokens,GeneratedTokens
2024-05-10 00:00:00.009930+00:00,2162,5
2024-05-10 02:00:00.017335+02:00,2399,6
"""
MOONCAKE = """{"timestamp": 500, "input_length": 513, "output_length": 9, "hash_ids": [0, 7]}
{"timestamp": 2500, "input_length": 512, "output_length": 1, "hash_ids": [0]}
"""
BURSTGPT = """Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type
5,ChatGPT,472,18,490,Conversation log
7,GPT-4,0,0,0,API log
45,ChatGPT,1087,230,1317,Conversation log
"""
BURSTGPT_SESSIONS = """\
Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type
5,s1,1.2,ChatGPT,472,18,490,Conversation log
45,,,ChatGPT,1087,230,1317,Conversation log
"""
USAGE = '"usage": {"prompt_tokens": 90, "completion_tokens": 4}'
SESSIONS = f"""{{"session_id": "b", "created": 1764000012.5, {USAGE}, "model": "x"}}
{{"session_id": "a", "created": 1764000010, {USAGE.replace("90", "50").replace("4", "3")}}}
"""
GOOD = {
    TraceFormat.AZURE: (AZURE, [0, 4.314579], [374, 396], [44, 109]),
    TraceFormat.MOONCAKE: (MOONCAKE, [0, 2], [513, 512], [9, 1]),
    TraceFormat.BURSTGPT: (BURSTGPT, [0, 40], [472, 1087], [18, 230]),
    TraceFormat.SESSIONS: (SESSIONS, [0, 2.5], [50, 90], [3, 4]),
}


def a_file(folder: Path, text: str, name: str = "trace") -> Path:
    path = folder / name
    if name.endswith(".gz"):
        path.write_bytes(gzip.compress(text.encode()))
    else:
        path.write_text(text)
    return path


@pytest.mark.parametrize("name", ["trace.txt", "trace.gz"])
@pytest.mark.parametrize("trace_format", list(TraceFormat))
def test_each_format_gives_the_same_form(
    tmp_path: Path, trace_format: TraceFormat, name: str
) -> None:
    text, arrival_s, input_tokens, output_tokens = GOOD[trace_format]
    trace = load_trace(a_file(tmp_path, text, name), trace_format)
    np.testing.assert_allclose(trace.arrival_s, arrival_s, atol=1e-6)
    assert trace.input_tokens.tolist() == input_tokens
    assert trace.output_tokens.tolist() == output_tokens
    with pytest.raises(ValueError, match="read-only"):
        trace.input_tokens[0] = 1


def test_time_zones_of_2024_count(tmp_path: Path) -> None:
    trace = load_trace(a_file(tmp_path, AZURE_2024), "azure")
    np.testing.assert_allclose(trace.arrival_s, [0, 0.007405], atol=1e-6)


def test_hashes_and_sessions_are_kept_in_order_of_arrival(tmp_path: Path) -> None:
    assert load_trace(a_file(tmp_path, MOONCAKE), "mooncake").hash_ids == ((0, 7), (0,))
    assert load_trace(a_file(tmp_path, SESSIONS), "sessions").session_ids == ("a", "b")
    with_sessions = load_trace(a_file(tmp_path, BURSTGPT_SESSIONS), "burstgpt")
    assert with_sessions.session_ids == ("s1", "line-3")


def test_failed_requests_of_burstgpt_are_counted_and_left_out(tmp_path: Path) -> None:
    assert load_trace(a_file(tmp_path, BURSTGPT), "burstgpt").skipped_rows == 1


AZURE_HEAD = AZURE.splitlines()[0] + "\n"
BURST_HEAD = BURSTGPT.splitlines()[0] + "\n"


@pytest.mark.parametrize(
    ("trace_format", "text", "message"),
    [
        ("azure", "", "trace:1: header must be TIMESTAMP,ContextTokens,GeneratedTokens, got ''"),
        ("azure", "TIMESTAMP,GeneratedTokens,ContextTokens\n", "trace:1: header must be"),
        ("azure", AZURE_HEAD, "trace:1: file must hold at least one request"),
        ("azure", AZURE + "x,1,2\n", "trace:4: TIMESTAMP must be a time like .*, got 'x'"),
        (
            "azure",
            AZURE + "2023-11-16 18:15:46,1.5,2\n",
            "trace:4: ContextTokens must be a whole number from 1 to 10000000, got '1.5'",
        ),
        (
            "azure",
            AZURE_HEAD + "2023-11-16 18:15:46,-3,2\n",
            "trace:2: ContextTokens must be .*'-3'",
        ),
        (
            "azure",
            AZURE_HEAD + "2023-11-16 18:15:46,3,0\n",
            "trace:2: GeneratedTokens must be .*'0'",
        ),
        ("azure", AZURE_HEAD + "2023-11-16 18:15:46,3\n", "trace:2: row must have 3 cells"),
        ("azure", AZURE_HEAD + f"2023-11-16 18:15:46,{'9' * 5000},3\n", "trace:2: ContextTokens"),
        ("burstgpt", BURST_HEAD + "5,m,3,4,8,API log\n", r"Total tokens must be 3 \+ 4, got '8'"),
        (
            "burstgpt",
            BURST_HEAD + "nan,m,3,4,7,API log\n",
            "Timestamp must be a time from 0 to .*'nan'",
        ),
        ("burstgpt", BURST_HEAD.replace("Model", "Name"), "trace:1: header must be"),
        ("mooncake", "{", "trace:1: line must be JSON"),
        ("mooncake", "[]", "trace:1: line must be a JSON object"),
        (
            "mooncake",
            MOONCAKE.replace("512", "1025"),
            "trace:2: hash_ids must hold 3 hashes, one per 512 tokens, got 1",
        ),
        ("mooncake", MOONCAKE.replace("[0, 7]", '["a"]'), "trace:1: hash_ids must be a list"),
        ("mooncake", MOONCAKE.replace("500", "true", 1), "trace:1: timestamp must be a time"),
        (
            "mooncake",
            MOONCAKE.replace(": 9", ": 9.5"),
            "trace:1: output_length must be a whole .* 9.5",
        ),
        ("sessions", SESSIONS.replace('"b"', "7"), "trace:1: session_id must be a text"),
        (
            "sessions",
            SESSIONS.replace("usage", "use"),
            "trace:1: usage must be an object, got None",
        ),
        (
            "sessions",
            SESSIONS.replace("prompt_tokens", "tokens"),
            "trace:1: usage.prompt_tokens must be a whole number .* got None",
        ),
    ],
)
def test_a_mistake_is_named(tmp_path: Path, trace_format: str, text: str, message: str) -> None:
    with pytest.raises(TraceInvalid, match=message):
        load_trace(a_file(tmp_path, text), trace_format)


def test_half_a_gzip_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "cut.gz"
    path.write_bytes(
        gzip.compress((AZURE_HEAD + "2023-11-16 18:15:46,3,4\n" * 9000).encode())[:-40]
    )
    with pytest.raises(TraceInvalid, match="file must be whole gzip data"):
        load_trace(path, "azure")
    path.write_bytes(b"no gzip at all")
    with pytest.raises(TraceInvalid, match=r"cut.gz:1: file must be whole gzip data"):
        load_trace(path, "azure")


def test_a_part_of_a_trace_starts_at_zero(tmp_path: Path) -> None:
    trace = load_trace(a_file(tmp_path, MOONCAKE), "mooncake")
    part = trace.between(1, 3)
    assert (part.arrival_s.tolist(), part.hash_ids) == ([0.0], ((0,),))
    assert trace.rate_per_s == 0.5
    with pytest.raises(ValueError, match="no request arrives in 5 to 6 s"):
        trace.between(5, 6)
    with pytest.raises(ValueError, match="1 requests in no time have no rate"):
        _ = part.rate_per_s


@pytest.mark.parametrize(
    ("name", "trace_format", "requests", "input_mean", "output_mean"),
    [
        ("AzureLLMInferenceTrace_2023_conv.csv.gz", "azure", 19_366, 1155, 211),
        ("mooncake_conversation_trace.jsonl.gz", "mooncake", 12_031, 12_035, 343),
    ],
)
def test_real_traces_where_they_are_present(
    name: str, trace_format: str, requests: int, input_mean: float, output_mean: float
) -> None:
    folder = os.environ.get("SHADOWPREFILL_TRACES")
    if folder is None or not (Path(folder) / name).exists():
        pytest.skip(f"SHADOWPREFILL_TRACES names no folder with {name}")
    trace = load_trace(Path(folder) / name, trace_format)
    assert len(trace) == requests
    assert trace.input_tokens.mean() == pytest.approx(input_mean, abs=0.5)
    assert trace.output_tokens.mean() == pytest.approx(output_mean, abs=0.5)
