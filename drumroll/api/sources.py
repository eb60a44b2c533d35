"""Where a job starts from: the model, the prompts, the reward."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field, PlainValidator, WithJsonSchema

from drumroll.api.base import ApiModel, Count, Name, Path, Positive, Quantity, Text
from drumroll.api.rule import Rule
from drumroll.api.rules import DATA_SOURCE_RULES, REWARD_RULES


def _scalar(value: object) -> object:
    if isinstance(value, bool | int | float) or (isinstance(value, str) and len(value) <= 4096):
        return value
    raise ValueError("write a number, true, false or a text of at most 4096 characters")


Scalar = Annotated[
    int | float | bool | str,
    PlainValidator(_scalar),
    WithJsonSchema({"x-kubernetes-preserve-unknown-fields": True}),
]
"""A parameter of a generator. A structural schema has no word for it, so an API server takes anything here."""


class Model(ApiModel):
    """The policy's starting point."""

    path: Path
    """Directory with config.json, safetensors and a tokenizer. Relative to the job file, or absolute."""
    dtype: Literal["float32", "bfloat16", "float16"] = "bfloat16"
    """Dtype of what is published and generated with; the trainer's own weights are float32."""
    chat_template: Path | None = None
    """File with a Jinja chat template; default: the model directory's own."""
    trust_remote_code: bool = False
    """Run Python code that the model directory brings."""


class Columns(ApiModel):
    """Which column of the data set holds what; a dot goes into nested columns (`reward_model.ground_truth`)."""

    prompt: Name | None = None
    """Text, or a list of chat messages."""
    answer: Name | None = None
    """The right answer, given to the reward."""
    tools: Name | None = None
    """Tool schemas for the chat template."""
    metadata: Name | None = None
    """A mapping given to the reward function as it is."""
    json_columns: Annotated[list[Name], Field(max_length=64)] = []
    """Columns whose text is parsed as JSON."""


class Task(ApiModel):
    """A generated task of reasoning-gym."""

    name: Name
    """Name of the task, such as `leg_counting`."""
    size: Annotated[int, Field(ge=1, le=10_000_000)] = 1000
    """Number of prompts."""
    seed: Count = 0
    """Seed of the generator."""
    config: Annotated[dict[Name, Scalar], Field(max_length=64)] = {}
    """Parameters of the task's generator."""


class DataSource(ApiModel):
    """Where prompts come from: a path or generated tasks, exactly one of them."""

    rules: ClassVar[tuple[Rule["DataSource"], ...]] = DATA_SOURCE_RULES

    path: Path | None = None
    """Parquet or JSONL file, or a Hugging Face data set directory, or hf://owner/name where a hub is reachable."""
    split: Name | None = None
    """Split of a Hugging Face data set; default: train (eval: test)."""
    tasks: Annotated[list[Task], Field(max_length=256)] = []
    """Generated tasks; needs `reward.type: tasks`."""
    columns: Columns = Columns()
    """Overrides the recognised layout (verl, TRL, slime, SkyRL, OpenRLHF)."""
    max_prompts: Positive | None = None
    """Use only the first rows; default: all."""


class EvalSource(DataSource):
    """Held-out prompts, answered with the newest weights every so many steps; never trained on."""

    every_steps: Annotated[int, Field(ge=1, le=1_000_000)] = 20
    """Steps between evaluations."""
    samples_per_prompt: Annotated[int, Field(ge=1, le=1024)] = 1
    """Answers per prompt."""
    temperature: Annotated[float, Field(ge=0.0, le=10.0)] = 0.0
    """Sampling temperature; 0 is greedy."""


class Data(ApiModel):
    """Prompts and their limits."""

    train: DataSource
    """What is trained on."""
    eval: EvalSource | None = None
    """What is evaluated on; default: nothing."""
    max_prompt_tokens: Annotated[int, Field(ge=1, le=1_000_000)] = 1024
    """Longest prompt, in tokens. A longer one is an error unless `overlongPrompts` says otherwise."""
    max_response_tokens: Annotated[int, Field(ge=1, le=1_000_000)] = 1024
    """Longest answer, in tokens; longer ones are cut."""
    overlong_prompts: Literal["error", "skip"] = "error"
    """What to do with prompts over `maxPromptTokens`: refuse the data set, or leave them out and say how many."""


class Reward(ApiModel):
    """How answers are scored."""

    rules: ClassVar[tuple[Rule["Reward"], ...]] = REWARD_RULES

    type: Literal["math", "exact", "function", "tasks"]
    """math: math-verify on the last answer given; exact: text equality; function: your own; tasks: the scorer of
    reasoning-gym."""
    function: (
        Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_.]*:[A-Za-z_][A-Za-z0-9_]*$", max_length=253)] | None
    ) = None
    """`module:name` of a function with TRL's signature (sync or async), found beside the job file or on PYTHONPATH."""
    pattern: Text | None = None
    """exact only: Python regular expression; the first group of its last match is the answer. Default: the whole text,
    stripped."""
    require_stop: bool = False
    """Answers that were cut at the token limit get 0."""
    timeout_seconds: Annotated[float, Field(gt=0, le=86_400)] = 30.0
    """Longest time for one group; a function that takes longer is an error of the reward, not a wrong answer."""
    workers: Annotated[int, Field(ge=1, le=256)] = 1
    """Processes that score, per replica."""
    memory: Quantity = "2Gi"
    """Most memory of one such process."""
