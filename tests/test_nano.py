"""The bundled model's dialogues, tokenizer, seeded heads and training; and the weights it ships."""

import json
from pathlib import Path
from random import Random

import jsonschema
import pytest
import torch
from transformers import AutoConfig, AutoTokenizer

from eval import bundle
from sampler.model import NANO
from sampler.nano.dialogues import CHANGES, as_trained, changed, dialogue
from sampler.nano.slots import Choice
from sampler.nano.tools import TOOLS
from sampler.nano.train import Batches, build_parser, make_model, train

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(NANO)


def test_the_inventory_covers_what_schemas_can_say():
    assert len(TOOLS) >= 40
    assert len({tool.name for tool in TOOLS} | {tool.other_name for tool in TOOLS}) == 2 * len(
        TOOLS
    )
    text = json.dumps([tool.definition() for tool in TOOLS])
    for feature in ('"array"', '"enum"', '"boolean"', '"minimum"', '"number"', '"integer"'):
        assert feature in text
    nested = [
        value
        for tool in TOOLS
        for value in tool.definition()["function"]["parameters"]["properties"].values()
        if value["type"] == "object"
    ]
    assert nested
    for tool in TOOLS:
        assert set(tool.required) <= set(tool.slots)
        assert set(tool.other_keys) <= set(tool.slots)
        assert not set(tool.other_keys.values()) & set(tool.slots), tool.name


@pytest.mark.parametrize("change", [False, True])
def test_every_label_is_a_valid_call_of_a_listed_tool(change):
    rng, calls = Random(1), 0
    for _ in range(1500):
        drawn = dialogue(rng, change=change, held_out=rng.random() < 0.5, turns=rng.randint(1, 2))
        schemas = {t["function"]["name"]: t["function"]["parameters"] for t in drawn.tools}
        assert len(schemas) == len(drawn.tools)
        for call in drawn.calls:
            jsonschema.Draft202012Validator(schemas[call["name"]]).validate(call["arguments"])
            calls += 1
        for message in drawn.messages:
            if message["role"] == "user":
                assert not set("{}[]|") & set(message["content"])
        assert bool(drawn.changes) == change
    assert calls > 900


def test_every_phrase_says_what_its_tool_requires():
    for tool in TOOLS:
        for phrase in tool.phrases:
            fixed = ""
            depth = 0
            for char in phrase:
                depth += (char == "[") - (char == "]")
                fixed += char if depth == 0 else ""
            assert depth == 0
            for key in tool.required:
                assert "{" + key in fixed, (tool.name, phrase)


def test_each_change_breaks_the_call_as_trained():
    rng, broken = Random(2), dict.fromkeys(CHANGES, 0)
    for tool in TOOLS * 20:
        convention = changed(tool, rng)
        function = convention.definition()["function"]
        validator = jsonschema.Draft202012Validator(function["parameters"])
        plain = as_trained(tool)
        arguments = {
            key: slot.draw(rng, False)[0]
            for key, slot in tool.slots.items()
            if key in tool.required and hasattr(slot, "draw")
        }
        if set(arguments) != set(tool.required):
            continue
        old = plain.call(arguments)
        jsonschema.Draft202012Validator(plain.definition()["function"]["parameters"]).validate(
            old["arguments"]
        )
        new = convention.call(arguments)
        validator.validate(new["arguments"])
        for change in convention.changes:
            if change == "name":
                broken[change] += function["name"] != old["name"]
            elif change == "enum":
                values = [v for k, v in arguments.items() if isinstance(tool.slots[k], Choice)]
                broken[change] += bool(values) and not validator.is_valid(old["arguments"])
            else:
                broken[change] += not validator.is_valid(old["arguments"])
    assert all(count > 20 for count in broken.values()), broken


def test_a_seed_is_a_data_set():
    def draw(seed):
        rng = Random(seed)
        return [dialogue(rng, turns=2) for _ in range(20)]

    assert draw(5) == draw(5)
    assert draw(5) != draw(6)


def test_held_out_values_are_not_in_training():
    def titles(held_out):
        rng = Random(3)
        slot = next(tool for tool in TOOLS if tool.name == "create_event").slots["title"]
        return {slot.draw(rng, held_out)[0] for _ in range(2000)}

    assert not titles(True) & titles(False)


def test_the_bundled_workload_is_what_the_generator_writes(tmp_path):
    assert bundle.write(tmp_path) == 300
    for name in ("requests.jsonl", "reference.jsonl"):
        assert (tmp_path / name).read_bytes() == (ROOT / "eval" / "data" / name).read_bytes()


def test_the_template_shows_tools_calls_and_results(tokenizer):
    tools = [
        {
            "type": "function",
            "function": {
                "name": "order",
                "description": "Order food",
                "parameters": {
                    "type": "object",
                    "properties": {
                        "items": {
                            "type": "array",
                            "items": {
                                "type": "object",
                                "properties": {"name": {"type": "string"}},
                                "required": ["name"],
                            },
                        },
                        "size": {"type": "string", "enum": ["s", "m"]},
                        "tip": {"type": "number", "minimum": 0, "maximum": 9},
                        "odd": {"anyOf": [{"type": "string"}, {"type": "null"}]},
                    },
                    "required": ["items"],
                },
            },
        },
        {"type": "function", "function": {"name": "now"}},
    ]
    call = {"id": "call_0", "type": "function"}
    messages = [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "Hi"},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [
                call | {"function": {"name": "now", "arguments": {}}},
                call | {"function": {"name": "order", "arguments": '{"items": []}'}},
            ],
        },
        {"role": "tool", "tool_call_id": "call_0", "content": "12:00"},
    ]
    text = tokenizer.apply_chat_template(
        messages, tools=tools, tokenize=False, add_generation_prompt=True
    )
    assert text == (
        "<|im_start|>system\nBe kind.\n"
        'order(items:[{name:string}],size?:"s"|"m",tip?:number 0..9,'
        'odd?:{"anyOf": [{"type": "string"}, {"type": "null"}]}) // Order food\n'
        "now()<|im_end|>\n"
        "<|im_start|>user\nHi<|im_end|>\n"
        "<|im_start|>assistant\n"
        '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>\n'
        '<tool_call>\n{"name": "order", "arguments": {"items": []}}\n</tool_call><|im_end|>\n'
        "<|im_start|>tool\n12:00<|im_end|>\n"
        "<|im_start|>assistant\n"
    )


@pytest.mark.parametrize(
    ("schema", "shown"),
    [
        ({"type": "array"}, "array"),
        (
            {"type": "array", "contains": {"type": "null"}},
            '{"type": "array", "contains": {"type": "null"}}',
        ),
        ({"type": "array", "items": True}, "[true]"),
        ({"type": ["array", "null"]}, '{"type": ["array", "null"]}'),
        ({"type": "object"}, "object"),
        ({"type": "object", "properties": {"keys": {"type": "null"}}}, "{keys?:null}"),
        ({}, "{}"),
        (False, "false"),
    ],
)
def test_the_template_shows_any_schema(tokenizer, schema, shown):
    """Also where Jinja would take a keyword that is not there for a method of the dictionary."""
    tool = {"name": "f", "parameters": {"type": "object", "properties": {"x": schema}}}
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": "Hi"}],
        tools=[{"type": "function", "function": tool}],
        tokenize=False,
    )
    assert f"f(x?:{shown})<|im_end|>" in text


@pytest.mark.parametrize("text", ["Hello,  world!\n\t", "naïve 上海 😀", '{"a": "b", "c": [1, 2]}'])
def test_the_tokenizer_gives_back_what_it_takes(tokenizer, text):
    ids = tokenizer(text, add_special_tokens=False).input_ids
    assert tokenizer.decode(ids) == text


def test_markers_are_single_tokens_that_decoding_keeps(tokenizer):
    for marker in ("<tool_call>", "</tool_call>", "<|im_start|>", "<|im_end|>"):
        assert len(tokenizer(marker, add_special_tokens=False).input_ids) == 1
    ids = tokenizer("<tool_call>x</tool_call>", add_special_tokens=False).input_ids
    assert tokenizer.decode(ids, skip_special_tokens=True) == "<tool_call>x</tool_call>"


def test_the_loss_is_over_what_the_assistant_writes(tokenizer):
    batches = Batches(tokenizer, 4, 0)
    rng = Random(4)
    for _ in range(50):
        drawn = dialogue(rng, turns=2)
        ids, mask = batches.encode(drawn)
        written = tokenizer.decode([i for i, m in zip(ids, mask, strict=True) if m])
        expected = ""
        for message in [*drawn.messages, drawn.reply()]:
            if message["role"] == "assistant":
                calls = "\n".join(
                    f'<tool_call>\n{{"name": "{f["name"]}", "arguments": {f["arguments"]}}}'
                    "\n</tool_call>"
                    for f in (call["function"] for call in message.get("tool_calls", []))
                )
                content = message["content"]
                expected += content + ("\n" if content and calls else "") + calls + "<|im_end|>"
        assert written == expected


def test_the_seeded_heads_copy_before_any_training(tokenizer):
    model = make_model(tokenizer, seed=1)
    tokens = torch.randint(300, 2000, (4, 60), generator=torch.Generator().manual_seed(0))
    logits = model(torch.cat([tokens, tokens], 1)).logits[:, 60:-1]
    right = (logits.argmax(-1) == tokens[:, 1:]).float().mean()
    # Without the heads this is chance, 1 in 2,048.
    assert right > 0.3


def test_training_resumes_where_it_was_killed(tokenizer, tmp_path, monkeypatch):
    def arguments(name):
        folder = tmp_path / name
        tokenizer.save_pretrained(folder / "tokenizer")
        return build_parser().parse_args(
            ["--output", str(folder), "--steps", "3", "--batch-size", "2", "--save-every", "1"]
        )

    class Killed(Exception):
        pass

    whole = arguments("whole")
    train(whole)
    halves = arguments("halves")
    original = Batches.__getitem__

    def killed_at_two(self, step):
        if step == 2:
            raise Killed
        return original(self, step)

    with monkeypatch.context() as patch:
        patch.setattr(Batches, "__getitem__", killed_at_two)
        with pytest.raises(Killed):
            train(halves)
    train(halves)
    one, other = (
        torch.load(args.output / "checkpoint.pt", weights_only=True) for args in (whole, halves)
    )
    assert one["step"] == other["step"] == 3
    for name, tensor in one["model"].items():
        assert torch.equal(tensor, other["model"][name]), name


def test_what_ships_is_a_small_plain_llama():
    from safetensors import safe_open

    config = AutoConfig.from_pretrained(NANO)
    assert config.architectures == ["LlamaForCausalLM"]
    file = NANO / "model.safetensors"
    assert file.stat().st_size <= 12 * 2**20
    with safe_open(file, "pt") as weights:
        tensors = [weights.get_tensor(name) for name in weights.keys()]  # noqa: SIM118
    assert {tensor.dtype for tensor in tensors} == {torch.bfloat16}
    assert 2e6 <= sum(tensor.numel() for tensor in tensors) <= 6e6
    assert 2000 <= config.vocab_size <= 4096
