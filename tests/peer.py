"""llama.cpp as the oracle, through the PyPI wheel `xllamacpp`: f32 KV cache, no flash attention, CPU, greedy.

The wheel runs llama.cpp's own server on a local port; this talks to its documented HTTP endpoints, because the
Python methods of the wheel offer neither tokenizing nor the plain completion format.
"""

import json
import urllib.error
import urllib.request
from pathlib import Path

import numpy as np
import xllamacpp


class Peer:
    """One loaded model. Close it, or use it in a `with`, before loading the next: each holds its whole model."""

    def __init__(self, path: Path, n_ctx: int = 1024, threads: int = 1):
        params = xllamacpp.CommonParams()
        params.model.path = str(path)
        params.n_ctx, params.n_parallel = n_ctx, 1
        params.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
        params.cache_type_k = params.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
        params.n_gpu_layers, params.fit_params = 0, False
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
        params.cache_ram_mib, params.warmup, params.verbosity, params.ui = 0, False, -1, False
        self._server = xllamacpp.Server(params)
        self._url = self._server.listening_address
        self._letter = self.tokenize("a")[0]

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.close()

    def close(self) -> None:
        self._server = None

    def tokenize(self, text: str, special: bool = True, add_bos: bool = False) -> list[int]:
        """Ids of `text`; `special` matches control tokens in it, `add_bos` adds what the metadata asks for."""
        return self._post("/tokenize", content=text, parse_special=special, add_special=add_bos)["tokens"]

    def detokenize(self, tokens: list[int]) -> str:
        return self._post("/detokenize", tokens=tokens)["content"]

    def chat(self, messages: list[dict]) -> str:
        """The prompt that the model's own template makes of `messages`."""
        return self._post("/apply-template", messages=messages)["prompt"]

    def greedy(self, tokens: list[int], n: int, top: int = 5) -> tuple[list[int], list[dict[int, float]]]:
        """Up to `n` ids after `tokens` (fewer at an end of generation) and each step's `top` log-probabilities."""
        ids = self._complete(tokens, n)["tokens"]
        return ids, [self.top(tokens + ids[:i], top) for i in range(len(ids))]

    def logprobs(self, tokens: list[int], n_vocab: int) -> np.ndarray:
        """Log-probabilities of the token after `tokens`, shape (n_vocab,)."""
        found = self.top(tokens, n_vocab)
        return np.array([found[i] for i in range(n_vocab)], np.float32)

    def top(self, tokens: list[int], top: int) -> dict[int, float]:
        """The `top` largest log-probabilities of the token after `tokens`, by id; a whole vocabulary takes a second."""
        # The server reports no probabilities for a token that ends inside a UTF-8 character. They are taken before
        # sampling, so a bias that forces a plain letter to be sampled leaves them as they are and makes them reported.
        step = self._complete(tokens, 1, n_probs=top, logit_bias=[[self._letter, 1e4]])["completion_probabilities"][0]
        return {entry["id"]: entry["logprob"] for entry in step["top_logprobs"]}

    def _complete(self, tokens: list[int], n: int, **more) -> dict:
        settings = {"temperature": 0, "repeat_penalty": 1.0, "post_sampling_probs": False, "return_tokens": True}
        return self._post("/completion", prompt=tokens, n_predict=n, cache_prompt=True, **settings, **more)

    def _post(self, endpoint: str, **body) -> dict:
        request = urllib.request.Request(
            self._url + endpoint, json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        try:
            with urllib.request.urlopen(request, timeout=120) as reply:
                return json.load(reply)
        except urllib.error.HTTPError as error:
            raise RuntimeError(f"llama.cpp refused {endpoint}: {error.read().decode()}") from None
