"""Requests from a dataset of the Hugging Face Hub, or from a folder that ``datasets`` reads."""

import re
from contextlib import suppress
from pathlib import Path
from typing import Any

from eval.chat_body import load_json
from eval.request_lines import JsonLines, RequestError

_ID = re.compile(
    r"(?P<name>\w[\w.-]*/\w[\w.-]*)(?:/(?P<config>\w[\w.-]*))?(?::(?P<split>[\w.-]+(?:\[[\w:%-]*\])?))?"
)
_FILE = re.compile(r"\.(jsonl?|gz|txt|csv|parquet)$")
_INSTALL = "pip install 'masked-sampling[hub]'"
# Where datasets keep nested values of many shapes, they keep them as JSON text.
_JSON_COLUMNS = ("messages", "tools", "metadata", "question", "function", "ground_truth")


def is_dataset_id(source: str) -> bool:
    """Whether this reads as ``org/name``, ``org/name/config``, or either with ``:split``."""
    return bool(_ID.fullmatch(source)) and not _FILE.search(source)


def read_dataset(source: str) -> JsonLines:
    """The rows of ``org/name[/config][:split]``, numbered from 1.

    Without a split: the only one there is, else ``test``.

    Raises:
        RequestError: no ``datasets`` package, no such dataset, configuration or split, no
            connection, or data that the package cannot read.
    """
    found = _ID.fullmatch(source)
    return _lines(source, found["name"], found["config"], found["split"])


def read_dataset_folder(folder: Path) -> JsonLines:
    """The rows of a folder that ``save_to_disk`` wrote or ``load_dataset`` reads.

    Raises:
        RequestError: as ``read_dataset``.
    """
    return _lines(str(folder), str(folder), None, None)


def is_saved_dataset(folder: Path) -> bool:
    """Whether ``save_to_disk`` wrote a folder."""
    return any((folder / name).is_file() for name in ("state.json", "dataset_dict.json"))


def _lines(source: str, name: str, config: str | None, split: str | None) -> JsonLines:
    try:
        import datasets
    except ImportError:
        raise RequestError(
            f"{source} is no file here, and reading it as a dataset of the Hugging Face Hub needs"
            f" the datasets package: {_INSTALL}"
        ) from None
    try:
        data = _load(datasets, name, config, split)
    except Exception as error:
        # Offline, not found, gated, no such configuration, torn Parquet: as many exceptions.
        reason = str(error).strip().split("\n")[0] or "no reason given"
        raise RequestError(
            f"cannot load dataset {source}: {type(error).__name__}: {reason}; give an existing"
            " file, or ORG/NAME[/CONFIG][:SPLIT] of a dataset that this machine can reach"
        ) from None
    if isinstance(data, dict):
        data = _one_split(source, data)
    lines = JsonLines(source, unit="row")
    for number, row in enumerate(data, 1):
        lines.values[number] = _request(row)
        lines.count = number
    return lines


def _load(datasets: Any, name: str, config: str | None, split: str | None) -> Any:
    if is_saved_dataset(Path(name)):
        return datasets.load_from_disk(name)
    return datasets.load_dataset(name, config, split=split)


def _one_split(source: str, splits: dict[str, Any]) -> Any:
    if len(splits) == 1:
        return next(iter(splits.values()))
    if "test" in splits:
        return splits["test"]
    names = list(splits)
    raise RequestError(
        f"dataset {source} has the splits {', '.join(names)}; name one, as in {source}:{names[0]}"
    )


def _request(row: dict[str, Any]) -> dict[str, Any]:
    """A row as the line of a file: JSON text parsed, and the nulls dropped.

    Arrow gives the objects of a column one set of keys: null where a row has no such key.
    """
    read = {}
    for name, value in row.items():
        if value is None:
            continue
        read[name] = _without_nulls(value)
        if name in _JSON_COLUMNS and isinstance(value, str):
            with suppress(ValueError):
                read[name] = load_json(value)
    return read


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [_without_nulls(item) for item in value]
    return value
