"""Makes first-light's model and data: a character-level Llama of 0.55 million parameters, warmed up by supervision.

    python examples/first_light/make_model.py --out models/first-light --seed 0

The warm-up stops by a test, not by a count: on held-out problems at least 98 % of the single steps of greedy answers
are right (a half-trained start gets stuck in RL), and 33 to 47 % of the sampled answers are. The second number is set
by how sloppy the teacher is, so the teacher gets a little better or worse until it fits. Nothing is downloaded.
"""

import argparse
import json
import random
import re
import time
from pathlib import Path
from typing import Any

import torch
from drumroll_trainer.learner.tiny_model import TinyShape, character_tokenizer, tiny_llama
from task import Problem, Teacher, draw_problem, right_steps, worked_answer

Row = tuple[list[int], list[int]]
"""Prompt ids, answer ids."""
EOS = 2
PAD = 0
CHARACTERS = "".join(chr(code) for code in range(32, 127))
SHAPE = TinyShape(hidden=128, layers=2, heads=4, intermediate=512, max_tokens=512, initializer_range=0.08)
BATCH = 48
CHUNK = 12
MAX_STEPS = 1500
EVALUATE_EVERY = 25
RIGHT_SAMPLED = (0.33, 0.47)
RIGHT_STEPS = 0.98
ANSWER = re.compile(r"\*00\+(\d)$")


def main() -> None:
    """Make the model, unless `--out` already holds one of this seed and recipe."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("models/first-light"), help="directory to write")
    parser.add_argument("--seed", type=int, default=0, help="seed of model, problems and teacher")
    parser.add_argument("--problems", type=int, default=20_000, help="training problems to write")
    arguments = parser.parse_args()
    stamp = {"seed": arguments.seed, "recipe": 1, "problems": arguments.problems}
    if (arguments.out / "made.json").exists() and json.loads((arguments.out / "made.json").read_text())[
        "made"
    ] == stamp:
        print(f"{arguments.out} is there already")
        return
    torch.set_num_threads(2)
    report = make(arguments.out, seed=arguments.seed, num_problems=arguments.problems)
    (arguments.out / "made.json").write_text(json.dumps({"made": stamp, **report}, indent=1) + "\n")


def make(out: Path, *, seed: int, num_problems: int) -> dict[str, Any]:
    """Warm a model up and write it, its tokenizer and the problems."""
    began = time.monotonic()
    tokenizer = character_tokenizer(CHARACTERS, max_tokens=SHAPE.max_tokens)
    model = tiny_llama(seed=seed, shape=SHAPE, vocabulary=3 + len(CHARACTERS))
    print(f"{sum(p.numel() for p in model.parameters()):,} parameters")
    report = warm_up(model, seed=seed)
    out.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)
    rng = random.Random(seed * 7919 + 1)
    write_problems(out / "train.jsonl", [draw_problem(rng, sigma=0.9) for _ in range(num_problems)])
    write_problems(out / "held-out.jsonl", [draw_problem(rng, sigma=0.9) for _ in range(256)])
    return {**report, "seconds": round(time.monotonic() - began, 1)}


def write_problems(path: Path, problems: list[Problem]) -> None:
    """One JSON object a line, in slime's column layout."""
    path.write_text("".join(json.dumps({"prompt": p.prompt, "label": p.answer}) + "\n" for p in problems))


def warm_up(model: Any, *, seed: int) -> dict[str, Any]:
    """Train on the sloppy teacher until the two tests hold."""
    rng = random.Random(seed)
    torch.manual_seed(seed)
    teacher = Teacher(hop=0.5, slip=0.045)
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3, betas=(0.9, 0.95), weight_decay=0.01, fused=True)
    held_out = [draw_problem(random.Random(seed * 31 + 7 + i), sigma=0.9) for i in range(256)]
    for step in range(1, MAX_STEPS + 1):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step)
        loss = train_step(model, optimizer, draw_rows(teacher, rng))
        if step % EVALUATE_EVERY:
            continue
        steps_right = greedy_steps_right(model, held_out[:64])
        sampled = sampled_right(model, held_out) if steps_right >= RIGHT_STEPS else 0.0
        figures = f"right steps {steps_right:.3f}  right sampled {sampled:.3f}  slip {teacher.slip:.3f}"
        print(f"step {step:4d}  loss {loss:.3f}  {figures}", flush=True)
        if steps_right >= RIGHT_STEPS and RIGHT_SAMPLED[0] <= sampled <= RIGHT_SAMPLED[1]:
            return {"steps": step, "right_steps": steps_right, "right_sampled": sampled, "slip": teacher.slip}
        if steps_right >= RIGHT_STEPS:
            factor = 1.25 if sampled > RIGHT_SAMPLED[1] else 0.8
            teacher = Teacher(teacher.hop, min(max(teacher.slip * factor, 0.01), 0.3))
    raise SystemExit(f"the warm-up did not pass its test in {MAX_STEPS} steps: try another --seed")


def learning_rate(step: int) -> float:
    """Short ramp, then a slow fall."""
    return 4e-3 * min(1.0, step / 20) * max(0.25, 0.5 ** (max(0, step - 200) / 150))


def encode(text: str) -> list[int]:
    return [3 + ord(character) - 32 for character in text]


def decode(ids: list[int]) -> str:
    return "".join(chr(i - 3 + 32) for i in ids)


def draw_rows(teacher: Teacher, rng: random.Random) -> list[Row]:
    """A batch of fresh worked answers, shortest first."""
    rows = []
    for _ in range(BATCH):
        problem = draw_problem(rng, sigma=0.7)
        rows.append((encode(problem.prompt), [*encode(worked_answer(problem, teacher, rng)), EOS]))
    return sorted(rows, key=lambda row: len(row[1]))


def train_step(model: Any, optimizer: torch.optim.Optimizer, rows: list[Row]) -> float:
    """One step on `rows`, in chunks of similar lengths so that little is padding; the loss is on the answers alone."""
    num_tokens = sum(len(answer) for _, answer in rows)
    optimizer.zero_grad()
    total = 0.0
    for i in range(0, len(rows), CHUNK):
        loss = answer_loss(model, rows[i : i + CHUNK]) / num_tokens
        loss.backward()
        total += float(loss.detach())
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return total


def answer_loss(model: Any, rows: list[Row]) -> torch.Tensor:
    """Summed cross entropy of the answers' tokens."""
    width = max(len(prompt) + len(answer) for prompt, answer in rows)
    ids = torch.full((len(rows), width), PAD)
    labels = torch.full((len(rows), width), -100)
    mask = torch.zeros((len(rows), width), dtype=torch.long)
    for i, (prompt, answer) in enumerate(rows):
        end = len(prompt) + len(answer)
        ids[i, :end] = torch.tensor(prompt + answer)
        labels[i, len(prompt) : end] = torch.tensor(answer)
        mask[i, :end] = 1
    logits = model(input_ids=ids, attention_mask=mask).logits
    return torch.nn.functional.cross_entropy(
        logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), ignore_index=-100, reduction="sum"
    )


@torch.no_grad()
def complete(model: Any, problems: list[Problem], *, sample: bool) -> list[str | None]:
    """Answers, or None where no end token came in time. Prompts all have the same length, so nothing is padded."""
    ids = torch.tensor([encode(problem.prompt) for problem in problems])
    out = model.generate(
        input_ids=ids,
        attention_mask=torch.ones_like(ids),
        do_sample=sample,
        **({"top_k": 0} if sample else {}),
        max_new_tokens=244,
        eos_token_id=EOS,
        pad_token_id=PAD,
    )
    answers: list[str | None] = []
    for row in out[:, ids.shape[1] :].tolist():
        answers.append(decode([i for i in row[: row.index(EOS)] if i >= 3]) if EOS in row else None)
    return answers


def greedy_steps_right(model: Any, problems: list[Problem]) -> float:
    """Share of right single steps in greedy answers."""
    pairs = [right_steps(p, a or "?") for p, a in zip(problems, complete(model, problems, sample=False), strict=True)]
    return sum(right for right, _ in pairs) / max(1, sum(total for _, total in pairs))


def sampled_right(model: Any, problems: list[Problem]) -> float:
    """Share of right answers when sampling at temperature 1."""
    answers = complete(model, problems, sample=True)
    found = [ANSWER.search(answer or "") for answer in answers]
    return sum(f is not None and f[1] == p.answer for f, p in zip(found, problems, strict=True)) / len(problems)


if __name__ == "__main__":
    main()
