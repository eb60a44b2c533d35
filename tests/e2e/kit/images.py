"""The container images under test: the checkout's own code, built by the repository's own recipe, cached by content.

Dependencies are not in them: pods see this environment's packages (see `kit.packages`), so that building takes seconds.
"""

import hashlib
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

from kit.node import Node
from kit.packages import CACHE, PACKAGES
from kit.shell import run

PREFIX = "localhost/drumroll-"
ROLES = ("operator", "scheduler", "rollout", "trainer")
_KEPT = 3
"""Archives of earlier states of the code that stay in the cache."""


@dataclass(frozen=True)
class Images:
    """Where a cluster finds the images."""

    prefix: str
    tag: str

    def of(self, role: str) -> str:
        """The whole reference."""
        return f"{self.prefix}{role}:{self.tag}"

    @property
    def registry(self) -> str:
        return self.prefix.rpartition("/")[0]


def provide(node: Node, root: Path) -> Images:
    """Build the images of the checkout at `root`, unless that has been done, and load them into the cluster."""
    images = Images(PREFIX, _key(node, root))
    archive = CACHE / f"{images.tag}.tar"
    if not archive.exists():
        _build(node, root, images)
        _export(node, images, archive)
    os.utime(archive)
    for old in sorted(CACHE.glob("*.tar"), key=os.path.getmtime)[:-_KEPT]:
        old.unlink()
    if not {images.of(role) for role in ROLES} <= node.images():
        node.load_images(archive)
    return images


def _key(node: Node, root: Path) -> str:
    """Of everything that goes into an image."""
    digest = hashlib.sha256(PACKAGES.as_posix().encode())
    included = [line[1:] for line in (root / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    tops = [root / name for name in included] + [node.tools / "base-image.sh"]
    files = [file for top in tops for file in ([top] if top.is_file() else sorted(top.rglob("*"))) if file.is_file()]
    for file in files:
        if "__pycache__" not in file.parts:
            digest.update(f"{file.relative_to(root) if file.is_relative_to(root) else file.name}\0".encode())
            digest.update(hashlib.sha256(file.read_bytes()).digest())
    return f"e2e-{digest.hexdigest()[:12]}"


def _storage(node: Node) -> list[str]:
    """buildah, with the image store that the cluster's tools keep."""
    shown = run(["bash", "-c", '. "$0/lib.sh"; echo "${STORE:-$CACHE/buildah}"', node.tools]).stdout.strip()
    return ["buildah", "--root", shown, "--runroot", f"{shown}-run", "--storage-driver", "overlay"]


def _build(node: Node, root: Path, images: Images) -> None:
    _install("buildah", "debootstrap")
    buildah = _storage(node)
    if run([*buildah, "inspect", "--type=image", "localhost/python:3.11-slim"], check=False).returncode != 0:
        run([node.tools / "base-image.sh"], deadline_s=900)
    settings = {
        "ENGINE": " ".join(buildah),
        "BUILD_FLAGS": f"--isolation chroot --pull-never --layers {' '.join(_pip_settings())}",
        "IMAGE_PREFIX": images.prefix,
        "TAG": images.tag,
        "TARGET": "mounted",
        "SITE_PACKAGES": str(PACKAGES),
    }
    run([root / "deploy/images/build.sh", *ROLES], env=os.environ | settings, deadline_s=900)


def _export(node: Node, images: Images, archive: Path) -> None:
    """One archive of all: layers that they share are in it once."""
    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE) as folder:
        for role in ROLES:
            image = images.of(role)
            command = [*_storage(node), "push", "-q", "-D", "--format", "oci", image, f"oci:{folder}/layout:{image}"]
            run(command, deadline_s=300)
        run(["tar", "-C", f"{folder}/layout", "-cf", f"{folder}/images.tar", "."], deadline_s=300)
        Path(folder, "images.tar").replace(archive)
    for role in ROLES:
        run([*_storage(node), "untag", images.of(role)], check=False)


def _pip_settings() -> list[str]:
    """This machine's way to a package index, seen by the build and left out of the images."""
    files = [Path("/etc/pip.conf"), Path(os.environ.get("PIP_CERT", "/etc/ssl/certs/ca-certificates.crt"))]
    return [f"--volume {file}:{file}:ro" for file in files if file.exists()]


def _install(*packages: str) -> None:
    missing = [name for name in packages if run(["dpkg", "-s", name], check=False).returncode != 0]
    if missing:
        run(["apt-get", "update", "-q"], deadline_s=300)
        quiet = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
        run(["apt-get", "install", "-qy", "--no-install-recommends", *missing], env=quiet, deadline_s=600)
