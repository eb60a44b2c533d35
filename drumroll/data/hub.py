"""Data sets of the Hugging Face hub: `hf://owner/name`, or `hf://owner/name/folder` for one configuration."""

from pathlib import Path

from drumroll.errors import DataError

HUB_PREFIX = "hf://"


def parse_address(address: str) -> tuple[str, str]:
    """(repository, folder inside it or an empty text) of a hub address. Pure.

    Raises:
        DataError: it does not name an owner and a data set.
    """
    parts = [part for part in address.removeprefix(HUB_PREFIX).removeprefix("datasets/").split("/") if part]
    if len(parts) < 2 or ".." in parts:
        raise DataError(f"{address} is not hf://owner/name or hf://owner/name/folder")
    return "/".join(parts[:2]), "/".join(parts[2:])


def fetch(address: str) -> Path:
    """The local directory of a hub data set, downloaded where it is not cached yet.

    Raises:
        DataError: no hub is reachable, or it has no such data set.
    """
    repository, folder = parse_address(address)
    try:
        from huggingface_hub import snapshot_download
    except ImportError as error:
        raise DataError(f"{address} needs the package huggingface_hub; install it or give a local path") from error
    patterns = [f"{folder}/*" if folder else "*"]
    try:
        root = snapshot_download(repository, repo_type="dataset", allow_patterns=patterns)
    # The client raises its own, OSError's and the HTTP library's errors for the same thing.
    except Exception as error:
        reason = str(error).strip().split("\n")[0] or type(error).__name__
        raise DataError(
            f"{address} cannot be fetched: {reason}. Where no hub is reachable, download the data set elsewhere and "
            f"write its local path"
        ) from error
    directory = Path(root) / folder
    if not directory.is_dir():
        raise DataError(f"{address}: the data set {repository} has no folder {folder!r}")
    return directory
