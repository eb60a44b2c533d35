"""What is allowed in an RLJob but probably not meant: warnings, never a reason to refuse it."""

import re
from collections.abc import Iterator

from drumroll.api.pods import EnvVar
from drumroll.api.spec import RLJobSpec
from drumroll.api.tree import spec_nodes, value_at

_SECRET_NAME = re.compile(
    r"(^|_)(TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIALS?|APIKEY|(API|ACCESS|PRIVATE|SECRET|AUTH|SIGNING)_?KEY)$",
    re.IGNORECASE,
)
_SECRET_VALUE = re.compile(
    r"^(hf_|sk-|gh[pousr]_|github_pat_|glpat-|xox[abp]-|AKIA[0-9A-Z]{12}|eyJ[A-Za-z0-9_-]{10}|-----BEGIN )|://[^/@\s]*:[^/@\s]+@"
)

_CLUSTER_ONLY = "On a cluster only."
"""How the documentation of a field says it."""


def advise_spec(spec: RLJobSpec) -> Iterator[tuple[str, str]]:
    """Field and sentence of everything that looks unintended. No sentence ever holds the value of a variable."""
    yield from _literal_secrets(spec)
    algorithm, evaluation = spec.algorithm, spec.data.eval
    if spec.steps is not None and algorithm.warmup_steps >= spec.steps:
        yield "spec.algorithm.warmupSteps", "the job ends before the learning rate has risen: write less than steps"
    if evaluation is not None and evaluation.temperature == 0 and evaluation.samples_per_prompt > 1:
        yield (
            "spec.data.eval.samplesPerPrompt",
            "greedy answers to one prompt are all the same: write 1, or a temperature",
        )
    if spec.model.trust_remote_code:
        yield (
            "spec.model.trustRemoteCode",
            "code of the model directory will run with the rights of the job's processes",
        )


def looks_like_secret(variable: EnvVar) -> bool:
    """Whether a literal value should rather be a reference to a Secret."""
    if not variable.value:
        return False
    return bool(_SECRET_NAME.search(variable.name) or _SECRET_VALUE.search(variable.value))


def cluster_only(spec: RLJobSpec) -> list[str]:
    """Fields that are set and that only a cluster acts on, in the order of the spec's text."""
    return [
        node.path
        for node in spec_nodes().values()
        if _CLUSTER_ONLY in node.description and value_at(spec, node.path) != node.default
    ]


def _environments(spec: RLJobSpec) -> Iterator[tuple[str, list[EnvVar]]]:
    """Every list of variables with its path."""
    yield "spec.env", spec.env
    yield "spec.rollout.env", spec.rollout.env
    yield "spec.trainer.env", spec.trainer.env
    yield "spec.scheduler.env", spec.scheduler.env
    patches = {
        "spec.rollout": spec.rollout.pod_template_patch,
        "spec.trainer": spec.trainer.pod_template_patch,
        "spec.scheduler": spec.scheduler.pod_template_patch,
        "spec.stream.embedded": spec.stream.embedded.pod_template_patch,
    }
    for path, patch in patches.items():
        for index, container in enumerate(patch.spec.init_containers if patch else ()):
            yield f"{path}.podTemplatePatch.spec.initContainers[{index}].env", container.env


def _literal_secrets(spec: RLJobSpec) -> Iterator[tuple[str, str]]:
    for path, variables in _environments(spec):
        for index, variable in enumerate(variables):
            if looks_like_secret(variable):
                yield (
                    f"{path}[{index}].value",
                    f"{variable.name} looks like a secret, and everyone who may read the job can read it: write "
                    "valueFrom: {secretKeyRef: {name: …, key: …}}",
                )
