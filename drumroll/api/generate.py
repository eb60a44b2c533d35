"""Writes what is made from the models: `python -m drumroll.api.generate`; with --check it only compares."""

import argparse
import sys
from pathlib import Path

from drumroll.api.crd import crd_yaml
from drumroll.api.reference import reference_page
from drumroll.errors import EXIT_INTERNAL, EXIT_OK

_ROOT = Path(__file__).parents[2]


def generated_files() -> dict[str, str]:
    """Path below the checkout, and content, of every generated file."""
    return {
        "deploy/crd/rljobs.drumroll.dev.yaml": crd_yaml(),
        # Charts read no files outside their folder.
        "deploy/helm/drumroll/files/crds/rljobs.drumroll.dev.yaml": crd_yaml(),
        "docs/reference/rljob.md": reference_page(),
    }


def stale_files(root: Path) -> list[str]:
    """Generated files that differ, in any byte, from what the models say now."""
    return [name for name, text in generated_files().items() if _read(root / name) != text.encode()]


def main(arguments: list[str] | None = None, root: Path = _ROOT) -> int:
    """Write the files, or with --check return 1 where one is stale."""
    parser = argparse.ArgumentParser(prog="python -m drumroll.api.generate", description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare, and exit with 1 where a file is stale")
    stale = stale_files(root)
    if parser.parse_args(arguments).check:
        for name in stale:
            sys.stderr.write(f"{name} is stale: run `python -m drumroll.api.generate`\n")
        return EXIT_INTERNAL if stale else EXIT_OK
    files = generated_files()
    for name in stale:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(files[name])
    return EXIT_OK


def _read(path: Path) -> bytes | None:
    return path.read_bytes() if path.is_file() else None


if __name__ == "__main__":
    sys.exit(main())
