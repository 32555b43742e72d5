"""Train the bundled model: ``python -m sampler.nano.train``.

Resumable: a checkpoint every `--save-every` steps, and the data of a step depend only on the seed
and the step. The learning rate is constant, then falls linearly to zero over the last third, so a
run may be resumed with more `--steps` until that fall begins.
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
import time
from pathlib import Path
from random import Random

_EXAMPLES = """examples:
  OMP_WAIT_POLICY=PASSIVE python -m sampler.nano.train
  python -m sampler.nano.train --output runs/short --steps 200 --save-every 50
  python -m sampler.nano.train --export sampler/nano/weights
"""
WEIGHTS = Path(__file__).parent / "weights"
VOCAB_SIZE = 2048
_DECAY = 1 / 3
_OPENING = 4  # tokens of a turn that name its topic and decide whether it calls
_POOL = 8  # batches drawn together and sorted by length, so that little is padding


def build_parser() -> argparse.ArgumentParser:
    """The options of the command."""
    parser = argparse.ArgumentParser(
        prog="python -m sampler.nano.train",
        description="Train the model that ships with masked-sampling, on one core in about 90 min.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--output", type=Path, default=Path("runs/nano"), help="checkpoint folder")
    parser.add_argument("--export", type=Path, help="write the finished model's files here")
    parser.add_argument("--steps", type=int, default=3300)
    parser.add_argument("--batch-size", type=int, default=16, help="dialogues a step")
    parser.add_argument("--lr", type=float, default=2.5e-3)
    parser.add_argument(
        "--decision-weight", type=float, default=4.0, help="weight of a turn's first four tokens"
    )
    parser.add_argument(
        "--looking-weight", type=float, default=0.3, help="weight of the supervised head's loss"
    )
    parser.add_argument("--seed", type=int, default=20261130)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--save-every", type=int, default=100)
    return parser


def make_tokenizer(seed: int):
    """The tokenizer, trained on 12,000 dialogues of both kinds: same seed, same tokens."""
    from transformers.utils.chat_template_utils import render_jinja_template

    from sampler.nano.dialogues import dialogue
    from sampler.nano.vocabulary import train_tokenizer

    template = WEIGHTS / "chat_template.jinja"
    rng, texts = Random(seed), []
    for i in range(12_000):
        d = dialogue(rng, change=i % 8 == 0)
        rendered, _ = render_jinja_template(
            [[*d.messages, d.reply()]], tools=d.tools, chat_template=template.read_text("utf-8")
        )
        texts.append(rendered[0])
    return train_tokenizer(texts, VOCAB_SIZE, template)


def make_model(tokenizer, seed: int):
    """A Llama of 2.0 M parameters with seeded copying heads, float32."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from sampler.nano.seeding import seed_copying_heads

    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=192,
        intermediate_size=448,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=4,
        head_dim=48,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        initializer_range=0.03,
        rope_parameters={"rope_type": "default", "rope_theta": 1e6},
    )
    model = LlamaForCausalLM(config)
    seed_copying_heads(model, seed=seed)
    return model


class Batches:
    """step -> ids int64[B, T], loss mask bool[B, T], points (row, topic, where it is found)."""

    def __init__(self, tokenizer, batch_size: int, seed: int):
        self.tokenizer, self.batch_size, self.seed = tokenizer, batch_size, seed
        self.block, self.batches = -1, []
        self.turn = tokenizer.convert_tokens_to_ids("<|im_start|>")
        self.end = tokenizer.convert_tokens_to_ids("<|im_end|>")
        marks = (":", " ", "<tool_call>")
        self.marks = [tokenizer(mark, add_special_tokens=False).input_ids[0] for mark in marks]
        self.header = tokenizer("assistant\n", add_special_tokens=False).input_ids

    def encode(self, dialogue) -> tuple[list[int], list[bool]]:
        """Token ids of one dialogue, and which of them the assistant writes."""
        ids = self.tokenizer.apply_chat_template(
            [*dialogue.messages, dialogue.reply()], tools=dialogue.tools, return_dict=False
        )
        mask, inside, skip = [], False, 0
        for i, token in enumerate(ids):
            if token == self.turn:
                inside = ids[i + 1 : i + 1 + len(self.header)] == self.header
                skip = len(self.header) + 1
            mask.append(inside and skip <= 0)
            skip -= 1
            if token == self.end:
                inside = False
        return ids, mask

    @staticmethod
    def draw(rng: Random):
        """A dialogue of one to four requests: more requests share the cost of one tools list."""
        from sampler.nano.dialogues import dialogue

        return dialogue(rng, turns=rng.choices((1, 2, 3, 4), (3, 3, 2, 2))[0])

    def __getitem__(self, step: int):
        import torch

        from sampler.nano.looking import places

        block, index = divmod(step, _POOL)
        if block != self.block:
            rng = Random(f"{self.seed}-{block}")
            rows = [self.encode(self.draw(rng)) for _ in range(_POOL * self.batch_size)]
            rows.sort(key=lambda row: len(row[0]))
            size = self.batch_size
            self.batches = [rows[i : i + size] for i in range(0, len(rows), size)]
            rng.shuffle(self.batches)
            self.block = block
        rows = self.batches[index]
        longest = max(len(ids) for ids, _ in rows)
        ids = torch.full((len(rows), longest), self.tokenizer.pad_token_id)
        mask = torch.zeros((len(rows), longest), dtype=torch.bool)
        for row, (tokens, targets) in enumerate(rows):
            ids[row, : len(tokens)] = torch.tensor(tokens)
            mask[row, : len(tokens)] = torch.tensor(targets)
        points = [
            (row, *place)
            for row, (tokens, targets) in enumerate(rows)
            for place in places(tokens, targets, *self.marks)
        ]
        return ids, mask, points


def loss_of(model, ids, mask, decision_weight: float = 1.0):
    """Mean cross-entropy in nats over the assistant's tokens; the head runs on those alone.

    `decision_weight` is the weight of each turn's first tokens, which decide whether to call.
    """
    import torch

    hidden = model.model(input_ids=ids[:, :-1], use_cache=False).last_hidden_state
    targets = mask[:, 1:]
    losses = torch.nn.functional.cross_entropy(
        model.lm_head(hidden[targets]), ids[:, 1:][targets], reduction="none"
    )
    opening = targets.clone()
    opening[:, _OPENING:] &= ~targets[:, :-_OPENING]
    weights = 1.0 + (decision_weight - 1.0) * opening[targets]
    return (losses * weights).sum() / weights.sum()


def make_optimizer(model, lr: float):
    """AdamW; norms and embeddings do not decay."""
    import torch

    matrices = [p for n, p in model.named_parameters() if p.ndim == 2 and "embed" not in n]
    others = [p for n, p in model.named_parameters() if p.ndim != 2 or "embed" in n]
    groups = [{"params": matrices, "weight_decay": 0.05}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr, betas=(0.9, 0.98))


def held_out_loss(model, batches: Batches, change: bool) -> float:
    """Loss in nats a token on 64 dialogues with held-out values."""
    import torch

    from sampler.nano.dialogues import dialogue

    rng = Random(f"held-out-{change}")
    probe = Batches(batches.tokenizer, 16, 0)
    total = 0.0
    with torch.no_grad():
        for _ in range(4):
            probe.block = 0
            probe.batches = [
                [probe.encode(dialogue(rng, change=change, held_out=True)) for _ in range(16)]
            ]
            ids, mask, _ = probe[0]
            total += loss_of(model, ids, mask).item()
    return total / 4


def train(args: argparse.Namespace) -> None:
    """Train, or go on with what --output holds, and export if asked to."""
    import torch

    from sampler.nano.looking import Looking

    torch.set_num_threads(args.threads)
    args.output.mkdir(parents=True, exist_ok=True)
    checkpoint = args.output / "checkpoint.pt"
    tokenizer_dir = args.output / "tokenizer"
    if tokenizer_dir.exists():
        from transformers import PreTrainedTokenizerFast

        tokenizer = PreTrainedTokenizerFast.from_pretrained(tokenizer_dir)
    else:
        tokenizer = make_tokenizer(args.seed)
        tokenizer.save_pretrained(tokenizer_dir)
    model = make_model(tokenizer, args.seed)
    looking = Looking(model)
    optimizer = make_optimizer(model, args.lr)
    start, seconds = 0, 0.0
    if checkpoint.exists():
        state = torch.load(checkpoint, weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        start, seconds = state["step"], state["seconds"]
        _forget_after(args.output / "curve.csv", start)
        print(f"resuming at step {start}", file=sys.stderr)

    batches = Batches(tokenizer, args.batch_size, args.seed)
    running, tokens, began = [], 0, time.monotonic()
    for step in range(start, args.steps):
        left = (args.steps - step) / (args.steps * _DECAY)
        rate = args.lr * min(1.0, (step + 1) / 100, left)
        ids, mask, points = batches[step]
        loss = loss_of(model, ids, mask, args.decision_weight)
        looks = looking.loss(points)
        (loss + args.looking_weight * looks).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.step()
        optimizer.zero_grad()
        running.append((loss.item(), looks.item()))
        tokens += ids.numel()
        done = step + 1
        if done % 50 == 0:
            _log(
                args.output,
                done,
                seconds + time.monotonic() - began,
                running,
                tokens,
                model,
                batches,
            )
            running, tokens = [], 0
        if done % args.save_every == 0 or done == args.steps:
            state = {
                "model": model.state_dict(),
                "optimizer": optimizer.state_dict(),
                "step": done,
                "seconds": seconds + time.monotonic() - began,
            }
            part = checkpoint.with_suffix(".part")
            torch.save(state, part)
            part.replace(checkpoint)
    export(model, tokenizer, args, args.export or args.output / "model")


def _forget_after(curve: Path, step: int) -> None:
    """Drop what a killed run logged after its last checkpoint: it is trained, and logged, again."""
    if curve.exists():
        lines = curve.read_text().splitlines(keepends=True)
        whole = [line for line in lines[1:] if line.count(",") == lines[0].count(",")]
        kept = [line for line in whole if int(line.split(",")[0]) <= step]
        curve.write_text("".join(lines[:1] + kept))


def _log(folder: Path, step: int, seconds: float, running, tokens, model, batches) -> None:
    path = folder / "curve.csv"
    new = not path.exists()
    probe = step % 250 == 0
    row = {
        "step": step,
        "seconds": round(seconds, 1),
        "loss": round(sum(loss for loss, _ in running) / len(running), 5),
        "looking": round(sum(looks for _, looks in running) / len(running), 5),
        "padded_tokens": tokens,
        "held_out_as_trained": round(held_out_loss(model, batches, False), 5) if probe else "",
        "held_out_changed": round(held_out_loss(model, batches, True), 5) if probe else "",
    }
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, row)
        if new:
            writer.writeheader()
        writer.writerow(row)
    print(row, file=sys.stderr, flush=True)


def export(model, tokenizer, args: argparse.Namespace, folder: Path) -> None:
    """Write config, bf16 safetensors, tokenizer, chat template and how they were made."""
    import torch

    folder.mkdir(parents=True, exist_ok=True)
    model.to(torch.bfloat16).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    made = {key: str(value) for key, value in vars(args).items() if key not in ("output", "export")}
    (folder / "training.json").write_text(json.dumps(made, indent=2) + "\n")


def main(argv: list[str] | None = None) -> int:
    """Train; returns the exit code: 0, or 130 (Ctrl-C)."""
    parser = build_parser()
    args = parser.parse_args(argv)
    for name in ("steps", "batch_size", "threads", "save_every"):
        if getattr(args, name) < 1:
            parser.error(f"--{name.replace('_', '-')} must be at least 1")
    try:
        train(args)
    except KeyboardInterrupt:
        print(f"interrupted; the same command resumes from {args.output}", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
