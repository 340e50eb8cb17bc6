"""Text to token ids and back, built from GGUF metadata, with the ids llama.cpp gives.

Byte-level BPE only (`tokenizer.ggml.model` gpt2, which llama 3, qwen2 and smollm use). Adding a pre-tokenizer is one
row of PRE. The chat template runs in jinja2's immutable sandbox: it comes with the model, so it is not trusted.
"""

import codecs
import datetime
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

import jinja2
import tokenizers
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import models, pre_tokenizers

from minfer.errors import UserError

NORMAL, UNKNOWN, CONTROL, USER_DEFINED = 1, 2, 3, 4  # values of tokenizer.ggml.token_type

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_CONTRACTIONS = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
# words with one leading sign, {digits}, signs with the line ends after them, line ends, blanks
_WORDS = rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|%s| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


@dataclass(frozen=True)
class Pre:
    """A pre-tokenizer: splits applied one after the other, and what the name implies besides."""

    splits: tuple[str, ...]
    ignore_merges: bool = False  # a piece that is a token is taken whole
    add_bos: bool = False  # unless tokenizer.ggml.add_bos_token says otherwise


PRE: dict[str, Pre] = {
    "gpt-2": Pre((_GPT2,)),
    "smollm": Pre((r"\p{N}", _GPT2)),
    "qwen2": Pre((_WORDS % r"\p{N}",)),
    "deepseek-r1-qwen": Pre((_WORDS % r"\p{N}",)),
    "llama-bpe": Pre((_WORDS % r"\p{N}{1,3}",), ignore_merges=True, add_bos=True),
}

# tokens that end a generation by their text, as in llama.cpp; it also lists fill-in-the-middle separators
END_TEXTS = frozenset(
    (
        *("<|eot_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<|eom_id|>", "<EOT>", "_<EOT>", "[EOT]"),
        *(
            "</s>",
            "<|endoftext|>",
            "<|end_of_text|>",
            "<end_of_turn>",
            "<end_of_utterance>",
            "<｜end▁of▁sentence｜>",
            "[EOS]",
        ),
        *("<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]", "<|file_sep|>"),
        *("<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"),
    )
)
END_KEYS = ("eos", "eot", "eom", "fim_pad", "fim_rep", "fim_sep")


@dataclass(frozen=True)
class Tokenizer:
    """Ids of one vocabulary; made by `load_tokenizer`."""

    bpe: tokenizers.Tokenizer
    tokens: list[str]
    types: list[int]
    specials: list[tuple[str, int]]  # tokens matched in the text itself, longest first
    eog: frozenset[int]  # ids that end a generation
    bos: int | None
    eos: int | None
    add_bos: bool
    add_eos: bool
    template: str | None

    @property
    def n_vocab(self) -> int:
        return len(self.tokens)

    def encode(self, text: str, special: bool = True, add_bos: bool | None = None) -> list[int]:
        """Ids of `text`. With `special`, control tokens written in it count as such; BOS is the model's choice."""
        first = self.add_bos if add_bos is None else add_bos
        ids = [self.bos] if first and self.bos is not None else []
        for piece in self._partition(_valid(text), special):
            ids += [piece] if isinstance(piece, int) else self.bpe.encode(piece, add_special_tokens=False).ids
        if self.add_eos and add_bos is None and self.eos is not None:
            ids.append(self.eos)
        return ids

    def decode(self, ids: Iterable[int], special: bool = False) -> str:
        """Text of `ids`; control tokens only with `special`. Bytes that are no UTF-8 become U+FFFD."""
        return b"".join(self.piece(i, special) for i in ids).decode(errors="replace")

    def stream(self) -> "Stream":
        return Stream(self)

    def piece(self, token: int, special: bool = False) -> bytes:
        """The bytes one id stands for."""
        text, kind = self.tokens[token], self.types[token]
        if kind == USER_DEFINED or (special and kind in (CONTROL, UNKNOWN)):
            return text.encode()
        return bytes(BYTE_OF[char] for char in text if char in BYTE_OF) if kind == NORMAL else b""

    def chat(self, messages: list[dict[str, Any]], add_generation_prompt: bool = True) -> str:
        """The prompt the model's template makes of `messages` ({role, content}), for `encode`.

        A BOS token the template writes is left out when `encode` adds one. UserError when there is no template or
        it refuses the messages.
        """
        if not self.template:
            raise UserError("the model has no chat template (tokenizer.chat_template); give a plain prompt instead")
        bos, eos = ("" if i is None else self.tokens[i] for i in (self.bos, self.eos))
        given = {"messages": messages, "add_generation_prompt": add_generation_prompt}
        try:
            text = _sandbox().from_string(self.template).render(**given, bos_token=bos, eos_token=eos)
        except Exception as error:  # a template is a program of the model's: it may raise anything
            reason = (str(error).splitlines() or [""])[0][:200]
            raise UserError(
                f"the model's chat template failed ({type(error).__name__}: {reason}); change the messages or give a"
                " plain prompt"
            ) from None
        return text.removeprefix(bos) if self.add_bos and bos else text

    def _partition(self, text: str, special: bool) -> list[str | int]:
        """Cut out the special tokens, longest first over the whole text, as llama.cpp does."""
        pieces: list[str | int] = [text] if text else []
        for token, number in self.specials:
            if token in text and (special or self.types[number] == USER_DEFINED):
                pieces = [part for piece in pieces for part in _cut(piece, token, number)]
        return pieces


class Stream:
    """Text as ids arrive, in whole characters: bytes of an unfinished one wait for the next id."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def feed(self, token: int) -> str:
        return self._decoder.decode(self._tokenizer.piece(token))

    def flush(self) -> str:
        """What is left of an unfinished character, as U+FFFD."""
        return self._decoder.decode(b"", final=True)


def load_tokenizer(metadata: Mapping[str, Any]) -> Tokenizer:
    """The tokenizer that GGUF metadata describe. UserError, naming what is supported, when it cannot be built."""
    kind, name = metadata.get("tokenizer.ggml.model"), metadata.get("tokenizer.ggml.pre")
    if kind != "gpt2":
        raise UserError(f"tokenizer.ggml.model is {kind!r} (supported: 'gpt2'); use a model with a byte-level BPE")
    if name not in PRE:
        raise UserError(f"tokenizer.ggml.pre is {name!r} (supported: {', '.join(PRE)}); use a model with one of these")
    tokens, merges, types = (_array(metadata, *of) for of in (("tokens", str), ("merges", str), ("token_type", int)))
    if len(types) != len(tokens):
        raise UserError(f"tokenizer.ggml.token_type has {len(types)} entries for {len(tokens)} tokens; fetch it again")
    end_ids = [i for i, token in enumerate(tokens) if token in END_TEXTS]
    for i in end_ids:
        types[i] = CONTROL  # llama.cpp overrides the type of these too
    specials = [(tokens[i], i) for i, t in enumerate(types) if t in (UNKNOWN, CONTROL, USER_DEFINED) and tokens[i]]
    named = {key: _token_id(metadata, key, len(tokens)) for key in ("bos", *END_KEYS)}
    return Tokenizer(
        bpe=_byte_level_bpe(tokens, merges, PRE[name]),
        tokens=tokens,
        types=types,
        specials=sorted(specials, key=lambda item: -len(item[0].encode())),
        eog=frozenset(end_ids) | {end for key in END_KEYS if (end := named[key]) is not None},
        bos=named["bos"],
        eos=named["eos"],
        add_bos=bool(metadata.get("tokenizer.ggml.add_bos_token", PRE[name].add_bos)),
        add_eos=bool(metadata.get("tokenizer.ggml.add_eos_token", False)),
        template=template if isinstance(template := metadata.get("tokenizer.chat_template"), str) else None,
    )


def _array(metadata: Mapping[str, Any], key: str, of: type) -> list[Any]:
    value: Any = metadata.get(f"tokenizer.ggml.{key}")
    found = value.tolist() if hasattr(value, "tolist") else []
    if not found or not isinstance(found[0], of):
        raise UserError(f"tokenizer.ggml.{key} is missing, or no list of {of.__name__}; use a file with its vocabulary")
    return list(found)


def _token_id(metadata: Mapping[str, Any], key: str, n_vocab: int) -> int | None:
    value = metadata.get(f"tokenizer.ggml.{key}_token_id")
    return value if isinstance(value, int) and 0 <= value < n_vocab else None


def _byte_level_bpe(tokens: list[str], merges: list[str], pre: Pre) -> tokenizers.Tokenizer:
    vocab = {token: i for i, token in enumerate(tokens)}
    # a merge is "LEFT RIGHT"; one whose parts or result are no tokens can never apply
    pairs = [(m[:at], m[at + 1 :]) for m in merges if (at := m.find(" ", 1)) > 0]
    pairs = [(left, right) for left, right in pairs if left in vocab and right in vocab and left + right in vocab]
    bpe = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=pairs, ignore_merges=pre.ignore_merges))
    splits = [pre_tokenizers.Split(tokenizers.Regex(split), "isolated") for split in pre.splits]
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    bpe.pre_tokenizer = pre_tokenizers.Sequence([*splits, byte_level])
    return bpe


def _byte_of() -> dict[str, int]:
    """GPT-2's printable stand-ins: visible Latin-1 bytes are themselves, the other 68 follow from U+0100."""
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in visible]
    return {chr(b): b for b in visible} | {chr(0x100 + i): b for i, b in enumerate(hidden)}


BYTE_OF = _byte_of()


def _valid(text: str) -> str:
    """Lone surrogates (from undecodable command line bytes) cannot be encoded; they become U+FFFD."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _cut(piece: str | int, token: str, number: int) -> list[str | int]:
    if isinstance(piece, int):
        return [piece]
    parts: list[str | int] = []
    for part in piece.split(token):
        parts += [part, number] if part else [number]
    return parts[:-1]


def _sandbox() -> ImmutableSandboxedEnvironment:
    """The environment chat templates are written for: transformers' settings and helpers."""
    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"])
    env.filters["tojson"] = lambda value, indent=None: json.dumps(value, ensure_ascii=False, indent=indent)
    env.globals["raise_exception"] = _raise_exception
    env.globals["strftime_now"] = lambda form: datetime.datetime.now().strftime(form)
    return env


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)
