"""Run while the image is built: can the engine use the torch of the base image?

usage: check_base.py cpu|cuda
"""

import sys

OLDEST = (2, 6)


def complaint(accelerator: str, version: str, cuda: str | None) -> str | None:
    """Return what is wrong with the base, or None.

    `version` is torch's own, such as 2.6.0+debian; `cuda` is the CUDA it was built for, or None.
    """
    if accelerator not in ("cpu", "cuda"):
        return f"ACCELERATOR={accelerator}: use cpu or cuda"
    major, minor = (int(part) for part in version.split(".")[:2])
    if (major, minor) < OLDEST:
        return f"the base image has torch {version}: use one with 2.6 or newer"
    if accelerator == "cuda" and cuda is None:
        return f"the base image's torch {version} has no CUDA: pass BASE_IMAGE with a CUDA torch"
    return None


if __name__ == "__main__":
    import torch

    sys.exit(complaint(sys.argv[1], torch.__version__, torch.version.cuda))
