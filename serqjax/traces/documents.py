"""Traces in JSON: a row a line (JSONL), or one document, as benchmarks write their results.

**Source:** `docs/traces.md`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from ..errors import ProgramError
from .rows import Clock, Row, SessionTurn, Table, TraceFile, nothing, read_table
from .tables import Lines

# ---------------------------------------------------------------- a row a line


def _no_delay(row: Row) -> None:
    for name in ("delay", "delay_ms"):
        if row.fields.get(name) is not None:
            raise row.bad(f"{name} is a time since the turn before, which is not read",
                          "write the timestamp of every row")


def _known_phase(row: Row) -> str | None:
    """Why a row of AIPerf's is no request to replay."""
    metadata = row.fields["metadata"]
    if metadata.get("was_cancelled"):
        return "cancelled"
    if row.fields.get("error") is not None:
        return "failed"
    return "warmup" if metadata.get("benchmark_phase") not in (None, "profiling") else None


MOONCAKE = Table("mooncake", Clock("timestamp", 1000), "input_length", "output_length",
                 ("session_id", "request_id", "priority"), ids="hash_ids", check=_no_delay)  # fmt: skip
AIPERF = Table("aiperf", Clock("request_start_ns", 10**9, sorts=True), "input_sequence_length",
               "output_sequence_length", ("conversation_id", "turn_index"), drop=_known_phase)  # fmt: skip
APEX = Table("apex", Clock("StartTimeOffset", 10**9), "ContextTokens", "GeneratedTokens")
SERVING_SIM = Table("llmservingsim", Clock("arrival_time_ns", 10**9), "input_toks", "output_toks")
#: What its benchmark of a real engine writes.
SERVING_SIM_BENCH = Table("llmservingsim", Clock("queued_ts", sorts=True), "input_toks", "output_toks",
                          ("request_id",))  # fmt: skip

JSONL: tuple[tuple[tuple[str, ...], Table], ...] = (
    (("timestamp", "input_length", "output_length", "hash_ids"), MOONCAKE),
    (("metadata", "metrics"), AIPERF),
    (("StartTimeOffset", "ContextTokens", "GeneratedTokens"), APEX),
    (("input_toks", "output_toks", "arrival_time_ns"), SERVING_SIM),
    (("input_toks", "output_toks", "queued_ts"), SERVING_SIM_BENCH),
)

#: Rows that are known and not read, by a field that tells them: what they are, and what to do.
UNREAD = {
    "sub_requests": ("sessions of LLMServingSim are not read", "write one row a request with `arrival_time_ns`"),
    "input_length": ("rows with `input_length` and no `hash_ids` do not say whether `timestamp` is in ms or s",
                     'add `"hash_ids": []` to Mooncake rows (ms), or write at_s,input_tok,output_tok as CSV'),
}  # fmt: skip


def read_jsonl(path: str, first: str, lines: Lines) -> TraceFile:
    """One JSON object a line; `first`: the first line, which is not among `lines`."""
    row = _object(path, 1, 1, first)
    for names, table in JSONL:
        if set(names) <= set(row):
            flat = _flat_aiperf if table is AIPERF else _plain
            return read_table(path, table, _rows(path, first, lines, flat))
    for name, (problem, hint) in UNREAD.items():
        if name in row:
            raise ProgramError.at(path, problem, hint)
    known = "; ".join(f"{', '.join(names)} ({table.kind})" for names, table in JSONL)
    raise ProgramError.at(path, f"unknown fields `{', '.join(map(str, row))[:100]}`", f"known: {known}")


def _rows(path: str, first: str, lines: Lines, flat: Any) -> Iterator[Row]:
    yield flat(f"{path}:1", 1, _object(path, 1, 1, first))
    for number, (line_number, line) in enumerate(lines, 2):
        yield flat(f"{path}:{line_number}", number, _object(path, line_number, number, line))


def _object(path: str, line_number: int, number: int, line: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ProgramError.at(f"{path}:{line_number}", f"row {number}: not JSON: {error}",
                              "write one JSON object a line") from None
    if not isinstance(row, dict):
        raise ProgramError.at(f"{path}:{line_number}", f"row {number}: {type(row).__name__} is no JSON object")
    return row


def _plain(place: str, number: int, fields: dict[str, Any]) -> Row:
    return Row(place, number, fields)


def _flat_aiperf(place: str, number: int, fields: dict[str, Any]) -> Row:
    """The values of the metrics and the metadata side by side."""
    for part in ("metadata", "metrics"):
        if not isinstance(fields.get(part), dict):
            raise ProgramError.at(place, f"row {number}: {part} is missing", "repair or remove the row")
    metrics = {k: v["value"] if isinstance(v, dict) and "value" in v else v for k, v in fields["metrics"].items()}
    return Row(place, number, {**metrics, **fields["metadata"], "metadata": fields["metadata"],
                               "error": fields.get("error")})  # fmt: skip


# ---------------------------------------------------------------- one document


#: Keys of a document that holds a benchmark's results, also if it is written in one line.
RESULTS = ("input_lens", "benchmarks", "ttfts", "request_throughput")


def read_document(path: str, document: Any) -> TraceFile:
    """Results of `vllm bench serve` or guidellm, or a list of lengths (ShareGPT, with the tokens counted)."""
    if isinstance(document, dict):
        if "input_lens" in document and "output_lens" in document:
            return _vllm_bench(path, document)
        if "benchmarks" in document:
            return _guidellm(path, document)
        if "ttfts" in document or "request_throughput" in document:
            raise ProgramError.at(path, "these results of `vllm bench serve` have no `input_lens`",
                                  "run it with --save-detailed")
        raise ProgramError.at(path, f"unknown JSON `{', '.join(map(str, document))[:100]}`",
                              "known: `vllm bench serve --save-result`, guidellm; a list of lengths")
    if isinstance(document, list):
        return _lengths(path, document)
    raise ProgramError.at(path, f"{type(document).__name__} is no trace", "give a JSON object or list")


def _vllm_bench(path: str, document: dict[str, Any]) -> TraceFile:
    """One request for each place of the lists; older files do not say when they were sent."""
    names = ["input_lens", "output_lens", *(["start_times"] if document.get("start_times") else [])]
    lists = [document[name] for name in names]
    for name, values in zip(names, lists):
        if not isinstance(values, list):
            raise ProgramError.at(f"{path}: {name}", "is no list", "run it with --save-detailed")
        if len(values) != len(lists[0]):
            raise ProgramError.at(f"{path}: {name}", f"{len(values)} values beside {len(lists[0])} input_lens")
    rows = (Row(f"{path}[{n - 1}]", n, dict(zip(names, values))) for n, values in enumerate(zip(*lists), 1))
    if len(names) == 3:
        table = Table("vllm_bench", Clock("start_times", sorts=True), "input_lens", "output_lens")
        return read_table(path, table, rows)
    return _untimed(path, "vllm_bench", ([(row, row.tokens("input_lens"), row.tokens("output_lens"), 0.0)]
                                         for row in rows))  # fmt: skip


def _untimed(path: str, kind: Any, sessions: Iterator[list[tuple[Row, int, int, float]]]) -> TraceFile:
    """Sessions whose turns are new tokens, output tokens and a think time."""
    dropped: dict[str, int] = {}
    kept: list[tuple[SessionTurn, ...]] = []
    for turns in sessions:
        made: list[SessionTurn] = []
        for _, new_tok, output_tok, think_s in turns:
            reason = "zero_output" if output_tok == 0 else "zero_input" if new_tok == 0 and not made else None
            if reason is None:
                made.append(SessionTurn(new_tok, output_tok, think_s))
            else:
                dropped[reason] = dropped.get(reason, 0) + 1
        if made:
            kept.append(tuple(made))
    if not kept:
        raise nothing(path, dropped)
    return TraceFile(path, kind, sessions=tuple(kept), dropped=dropped)


def _guidellm(path: str, document: dict[str, Any]) -> TraceFile:
    """The requests of a report with one benchmark."""
    runs = document["benchmarks"]
    if not isinstance(runs, list) or len(runs) != 1 or not isinstance(runs[0], dict):
        count = len(runs) if isinstance(runs, list) else "no list of"
        raise ProgramError.at(f"{path}: benchmarks", f"{count} benchmarks in one report, and one is one trace",
                              "keep one of them in the file")
    parts = runs[0].get("requests")
    if isinstance(parts, list):
        parts = {"successful": parts}
    if not isinstance(parts, dict) or not isinstance(parts.get("successful"), list):
        raise ProgramError.at(f"{path}: benchmarks[0].requests", "the report has no single requests",
                              "write the whole report, with its requests")
    place = f"{path}: benchmarks[0].requests.successful"
    for n, fields in enumerate(parts["successful"], 1):
        if not isinstance(fields, dict):
            raise ProgramError.at(f"{place}[{n - 1}]", f"row {n}: {type(fields).__name__} is no JSON object")
    rows = (Row(f"{place}[{n - 1}]", n, fields) for n, fields in enumerate(parts["successful"], 1))
    table = Table("guidellm", Clock("request_start_time", sorts=True), "prompt_tokens", "output_tokens")
    gone = {reason: len(parts.get(name) or ())
            for name, reason in (("errored", "failed"), ("incomplete", "cancelled"))}  # fmt: skip
    gone = {reason: count for reason, count in gone.items() if count}
    if not parts["successful"]:
        raise nothing(path, gone)
    trace = read_table(path, table, rows)
    trace.dropped.update(gone)
    return trace


# ---------------------------------------------------------------- lengths


def _lengths(path: str, document: list[Any]) -> TraceFile:
    """Pairs `[input, output]`, objects `{"input_len", "output_len"}`, or ShareGPT's conversations with the tokens of
    each message counted (`tokens`: a number, or the list of token ids)."""
    return _untimed(path, "sharegpt", (_conversation(path, n, item) for n, item in enumerate(document, 1)))


def _conversation(path: str, n: int, item: Any) -> list[tuple[Row, int, int, float]]:
    place = f"{path}[{n - 1}]"
    if isinstance(item, list) and len(item) == 2:
        item = {"input_len": item[0], "output_len": item[1]}
    if not isinstance(item, dict):
        raise ProgramError.at(place, f"row {n}: {str(item)[:40]!r} is no pair of lengths",
                              "write [input tokens, output tokens]")
    if "conversations" not in item:
        row = Row(place, n, item)
        return [(row, row.tokens("input_len"), row.tokens("output_len"), 0.0)]
    turns: list[tuple[Row, int, int, float]] = []
    new_tok = 0
    messages = item["conversations"]
    if not isinstance(messages, list):
        raise ProgramError.at(place, f"row {n}: conversations is no list", "repair or remove the row")
    for k, message in enumerate(messages):
        if not isinstance(message, dict) or "tokens" not in message:
            raise ProgramError.at(f"{place}.conversations[{k}]", f"row {n}: the message has no `tokens`",
                                  "text needs a tokenizer: add its number of tokens, or its token ids, as `tokens`")
        ids = message["tokens"]
        row = Row(f"{place}.conversations[{k}]", n, {"tokens": len(ids) if isinstance(ids, list) else ids})
        if message.get("from") in ("gpt", "assistant", "chatgpt", "bing", "bard"):
            turns.append((row, new_tok, row.tokens("tokens"), 0.0))
            new_tok = 0
        else:
            new_tok += row.tokens("tokens")
    return turns
