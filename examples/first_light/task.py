"""The arithmetic of the first-light example: `a*mm+c=` modulo 10, worked out line by line.

    3*04+9=  ->  3*03+2=3*02+5=3*01+8=3*00+1

Each hop takes one off the middle number and adds `a` to the last digit. A policy may hop further than one at a time
and guess the value, so that the length of an answer is its own choice: short answers risk a wrong digit.
"""

import random
from dataclasses import dataclass

MEDIAN_HOPS = 6
MAX_HOPS = 30


@dataclass(frozen=True, slots=True)
class Problem:
    """`a * hops + c`, modulo 10."""

    a: int
    hops: int
    c: int

    @property
    def prompt(self) -> str:
        return f"{self.a}*{self.hops:02d}+{self.c}="

    @property
    def answer(self) -> str:
        return str((self.a * self.hops + self.c) % 10)


@dataclass(frozen=True, slots=True)
class Teacher:
    """How sloppy the worked answers of the warm-up are."""

    hop: float
    """Probability that an answer has one long hop, with its right value."""
    slip: float
    """Probability that a digit is wrong; what follows is consistent with it."""


def draw_problem(rng: random.Random, *, sigma: float) -> Problem:
    """A problem whose number of hops is log-normal with spread `sigma`, cut to 1..30."""
    hops = round(rng.lognormvariate(0.0, sigma) * MEDIAN_HOPS)
    return Problem(rng.randint(1, 4), min(max(hops, 1), MAX_HOPS), rng.randint(0, 9))


def worked_answer(problem: Problem, teacher: Teacher, rng: random.Random) -> str:
    """One worked answer of the sloppy teacher, without the end token."""
    hops, c, lines = problem.hops, problem.c, []
    long_hop_at = rng.randint(2, hops) if hops >= 2 and rng.random() < teacher.hop else 0
    while hops > 0:
        taken = rng.randint(2, hops) if hops == long_hop_at else 1
        hops -= taken
        c = (c + problem.a * taken) % 10
        if rng.random() < teacher.slip:
            c = (c + rng.randint(1, 9)) % 10
        lines.append(f"{problem.a}*{hops:02d}+{c}")
    return "=".join(lines)


def right_steps(problem: Problem, completion: str) -> tuple[int, int]:
    """(right single steps, steps) of a completion, each judged against the line before it."""
    before, right, total = (problem.hops, problem.c), 0, 0
    for line in completion.split("="):
        try:
            hops, c = int(line[2:4]), int(line[5:])
        except ValueError:
            return right, total + 1
        expected = (before[1] + problem.a * (before[0] - hops)) % 10
        right += c == expected and 0 <= hops < before[0]
        total += 1
        before = (hops, c)
    return right, total
