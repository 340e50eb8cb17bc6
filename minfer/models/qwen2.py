"""qwen2: NEOX RoPE, biases on q, k and v."""

from collections.abc import Mapping
from typing import Any

from minfer.models.decoder import HParams, read_hparams


def hparams(md: Mapping[str, Any]) -> HParams:
    return read_hparams(md, "qwen2", rope_style="neox")
