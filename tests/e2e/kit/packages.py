"""This environment's packages as pods see them: a copy of links, compiled, made once for each set of packages.

The node binds it at one place, where any user can reach it (a checkout may lie in a closed home directory) and where no
volume of a pod hides it. Without compiled files every process would spend its first seconds compiling torch.
"""

import hashlib
import os
import shutil
import sys
import sysconfig
from pathlib import Path

from kit.shell import run

PACKAGES = Path("/opt/drumroll-e2e/site-packages")
CACHE = Path.home() / ".cache" / "drumroll" / "e2e"
_KEPT = 2
_NOT_COMPILED = (
    r"/(tests?|testing|torch/_inductor|torch/testing|transformers/models/(?!auto|llama|encoder_decoder)\w+)/"
)
"""What no process of a job imports, and is much."""


def bind_packages() -> None:
    """Show the packages at PACKAGES. A node copies this machine's mounts when it starts."""
    PACKAGES.mkdir(parents=True, exist_ok=True)
    if not os.path.ismount(PACKAGES):
        run(["mount", "--bind", _compiled(), PACKAGES])


def unbind_packages() -> None:
    run(["umount", "--lazy", PACKAGES], check=False)


def _compiled() -> Path:
    """The folder in the cache, made if need be."""
    source = Path(sysconfig.get_path("purelib"))
    names = sorted(path.name for path in source.glob("*.dist-info") if not path.name.startswith("drumroll-"))
    key = hashlib.sha256("\n".join([sys.version, *names]).encode()).hexdigest()[:12]
    folder = CACHE / f"packages-{key}"
    if not folder.exists():
        new = CACHE / f"making-{os.getpid()}"
        CACHE.mkdir(parents=True, exist_ok=True)
        linked = run(["cp", "--archive", "--link", source, new], check=False, deadline_s=600)
        if linked.returncode != 0:
            shutil.rmtree(new, ignore_errors=True)
            run(["cp", "--archive", source, new], deadline_s=1200)
        # One broken file, such as a template of code, must not stop the others.
        clean = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        compiling = [
            "-m",
            "compileall",
            "-q",
            "-j",
            "2",
            "-x",
            _NOT_COMPILED,
            "-s",
            str(new),
            "-p",
            str(PACKAGES),
            str(new),
        ]
        run([sys.executable, *compiling], env=clean, check=False, deadline_s=1800)
        new.rename(folder)
    os.utime(folder)
    for old in sorted(CACHE.glob("packages-*"), key=os.path.getmtime)[:-_KEPT]:
        shutil.rmtree(old)
    return folder
