"""Images install what the lock says, to the byte, and are built from everything that the wheel holds."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
IMAGES = ROOT / "deploy/images"
FOLDERS = sorted(path.parent.name for path in IMAGES.glob("*/requirements.lock"))
_PIN = re.compile(r"^([a-z0-9.-]+)==([^ ;\\]+)", re.MULTILINE)


def test_every_role_has_an_image_for_cpus_and_engines_have_one_for_gpus() -> None:
    assert FOLDERS == ["operator", "rollout-cpu", "rollout-gpu", "scheduler", "trainer-cpu", "trainer-gpu"]


_IMPORT_ALL = """
import importlib, importlib.machinery, importlib.metadata, pkgutil, sys
held = {*sys.argv[1].split(","), "drumroll"}

class Held(importlib.machinery.PathFinder):
    homes = importlib.metadata.packages_distributions()
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        homes = {home.lower().replace("_", "-") for home in cls.homes.get(name, [])}
        return super().find_spec(name, path, target) if homes & held or not homes else None

sys.meta_path[:] = [Held if finder is importlib.machinery.PathFinder else finder for finder in sys.meta_path]
for name in sys.argv[2:]:
    package = importlib.import_module(name)
    for module in pkgutil.walk_packages(getattr(package, "__path__", []), name + "."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
"""


@pytest.mark.parametrize("lock", [f"{name}/requirements.lock" for name in FOLDERS] + ["build.lock"])
def test_every_package_is_pinned_with_hashes_and_without_addresses(lock: str) -> None:
    text = (IMAGES / lock).read_text()
    entries = re.split(r"\n(?=\S)", text.strip())
    assert all(_PIN.match(entry) and "--hash=sha256:" in entry for entry in entries)
    assert "://" not in text


@pytest.mark.parametrize("name", FOLDERS)
def test_versions_are_those_that_are_tested(name: str) -> None:
    tested = _pins(ROOT / "requirements.lock")
    image = _pins(IMAGES / name / "requirements.lock")
    # What only GPUs need is tested by nothing here.
    shared = {package: versions for package, versions in image.items() if package in tested}
    assert len(shared) > 20
    assert all(versions <= tested[package] for package, versions in shared.items())
    if not name.endswith("-gpu"):
        assert shared == image


@pytest.mark.parametrize(
    ("image", "packages"),
    [("operator", ["drumroll_operator"]), ("scheduler", ["drumroll_scheduler", "drumroll.data", "drumroll.valkey"])],
)
def test_small_images_hold_all_that_their_processes_import(image: str, packages: list[str]) -> None:
    """Imports at the top of modules; what a function imports is proven by running it."""
    held = ",".join(_pins(IMAGES / image / "requirements.lock"))
    command = [sys.executable, "-c", _IMPORT_ALL, held, *packages]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_nothing_of_the_wheel_is_kept_from_the_build() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    allowed = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    needed = {package.split("/")[0] for package in project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]}
    assert needed | {"pyproject.toml", "README.md", "LICENSE", "deploy/images"} == allowed


def _pins(lock: Path) -> dict[str, set[str]]:
    pins: dict[str, set[str]] = {}
    for package, version in _PIN.findall(lock.read_text()):
        pins.setdefault(package, set()).add(version)
    return pins
