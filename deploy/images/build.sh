#!/usr/bin/env bash
# Builds container images with podman, docker or buildah, whichever works here. `make images` calls it.
#
#   build.sh operator scheduler        (none named: all)
#
# ENGINE       the engine and its own options, such as "buildah --root /data/store"
# BUILD_FLAGS  options of its build command, such as "--isolation chroot --pull-never"
# IMAGE_PREFIX, TAG   localhost/drumroll-, dev: the scheduler's image is localhost/drumroll-scheduler:dev
# GPU          1: rollout and trainer for GPUs
# PYTHON_IMAGE base image, at best by digest
# TARGET       installed; or mounted: no dependencies, they are bound at SITE_PACKAGES at run time
set -euo pipefail
cd "$(dirname "$0")/../.."

usable() {
  case $1 in
    buildah) command -v buildah > /dev/null ;;
    *) command -v "$1" > /dev/null && "$1" info > /dev/null 2>&1 ;;
  esac
}
if [ -z "${ENGINE:-}" ]; then
  for candidate in podman docker buildah; do
    if usable "$candidate"; then ENGINE=$candidate; break; fi
  done
fi
if [ -z "${ENGINE:-}" ]; then
  echo "no podman, docker or buildah that works here: install one, or name it by ENGINE=" >&2
  exit 1
fi
read -ra engine <<< "$ENGINE"
read -ra flags <<< "${BUILD_FLAGS:-}"
build=build
if [ "$(basename "${engine[0]}")" = buildah ]; then build=bud; fi
for name in PYTHON_IMAGE SITE_PACKAGES; do
  if [ -n "${!name:-}" ]; then flags+=(--build-arg "$name=${!name}"); fi
done

if [ $# = 0 ]; then set -- operator scheduler rollout trainer; fi
for image in "$@"; do
  recipe=$image
  case $image in
    operator | scheduler) ;;
    rollout | trainer) if [ "${GPU:-}" = 1 ]; then recipe=$image-gpu; else recipe=$image-cpu; fi ;;
    *) echo "there is no image $image: write operator, scheduler, rollout or trainer" >&2; exit 1 ;;
  esac
  tag=${IMAGE_PREFIX:-localhost/drumroll-}$image:${TAG:-dev}
  echo "== $tag ($recipe)"
  "${engine[@]}" $build "${flags[@]}" -f deploy/images/Containerfile --target "${TARGET:-installed}" \
    --build-arg "IMAGE=$recipe" -t "$tag" .
done
