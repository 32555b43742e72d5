"""BFCL's answers to the requests of a results file."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from eval.plain_or_gzip import read_bytes
from eval.rows import ResultRow


def answers_for(path: Path, rows: Iterable[ResultRow]) -> tuple[dict[int, Any], list[str]]:
    """Ground truth for rows, from BFCL's answers or from the set that they belong to.

    Found by the ``bfcl_id`` in a request's metadata; from a set also by data_index.

    Returns:
        data_index to the calls that are right, and a sentence for each row whose answer does not
        fit its request.

    Raises:
        ValueError: it cannot be read, or none of it belongs to these rows.
    """
    from eval.bfcl import expected_calls
    from eval.request_lines import RequestError
    from eval.workloads import load_workload

    try:
        truths = _truths(read_bytes(path))
    except OSError as error:
        raise RequestError(f"cannot read answers from {path}: {error.strerror}") from None
    found, unmatched = {}, []
    if truths:
        for row in rows:
            name = _bfcl_id(row.request)
            if name is None or name not in truths:
                continue
            metadata = {"names": {}} | row.request["metadata"]
            try:
                found[row.data_index] = expected_calls(
                    truths[name], {**row.request, "metadata": metadata}
                )
            except (ValueError, KeyError, TypeError) as error:
                unmatched.append(f"request {row.data_index}: its answer does not fit: {error}")
    else:
        workload = load_workload(path)
        known = workload.answers or {}
        by_id = {_bfcl_id(line.body): known.get(line.data_index) for line in workload.requests}
        for row in rows:
            name = _bfcl_id(row.request)
            truth = by_id.get(name) if name is not None else known.get(row.data_index)
            if truth is not None:
                found[row.data_index] = truth
    if not found:
        raise RequestError(
            f"{path} answers none of these requests; a row belongs to an answer by"
            " request.metadata.bfcl_id"
        )
    return found, unmatched


def _truths(data: bytes) -> dict[str, Any]:
    """Ground truth by id, of an answers file; {} for any other."""
    truths = {}
    for line in data.split(b"\n"):
        try:
            value = json.loads(line) if line.strip() else None
        except (ValueError, RecursionError):
            continue
        if isinstance(value, dict) and "ground_truth" in value and "question" not in value:
            truths[str(value.get("id"))] = value["ground_truth"]
    return truths


def _bfcl_id(body: Mapping[str, Any]) -> str | None:
    metadata = body.get("metadata")
    name = metadata.get("bfcl_id") if isinstance(metadata, dict) else None
    return name if isinstance(name, str) else None
