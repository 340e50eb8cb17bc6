"""llama: interleaved RoPE (GGUF files carry q and k with rows permuted for it), biases only where the file has them."""

from collections.abc import Mapping
from typing import Any

from minfer.models.decoder import HParams, read_hparams


def hparams(md: Mapping[str, Any]) -> HParams:
    return read_hparams(md, "llama", rope_style="interleaved")
