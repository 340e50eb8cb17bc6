"""Token ids are llama.cpp's, for every pre-tokenizer; streaming never shows half a character."""

import dataclasses
import re
import subprocess
import sys

import numpy as np
import pytest

from minfer.errors import UserError
from minfer.gguf import open_gguf
from minfer.gguf_write import NewFile, copy_metadata, write_gguf
from minfer.progress import silent
from minfer.synth import Preset, add_hyperparameters, tensors_of, weight_std, weights
from minfer.tokenizer import PRE, USER_DEFINED, load_tokenizer
from peer import Peer

NASTY = [
    "",
    " ",
    "  ",
    "   a",
    "a ",
    "a  b   c    d",
    "\n",
    "\n\n\n",
    " \n \n ",
    "\t",
    "\t\tif x:\n\t\t\treturn  1\n",
    "line\r\nline\r\n\r\nline",
    "\r",
    "trailing   \n",
    "Hello, world!",
    "The capital of France is",
    "1234567",
    "1 22 333 4444 55555 666666 7777777 88888888",
    "3.14159, 1e-5, 0xDEADBEEF, 1_000_000",
    "١٢٣٤٥ ४५६ ⅷ ½ ² ㊿",
    "I'm you're he's we've they'll I'd don't",
    "I'M YOU'RE HE'S WE'VE THEY'LL I'D DON'T",
    "'she'st'self'ser'sp 'the'to'th'tr 're'res'ret'rec 'ver'men'man'lle'de'dis'do",
    "'sup 'tis 'Slow 'LLama 'rest 'medley 'Dvd 'verb 'ſ",
    "'s't're've'm'll'd 'S'T'Re'vE",
    "it’s “quoted” — dash… and–dash",
    "👩‍👩‍👧‍👦 family, 👍🏽 skin, 🇫🇷 flag, ☺️ variation",
    "🙂🙃🙂🙃 🤖",
    "e\u0301 a\u0308 n\u0303 Z\u0351\u036b\u0343a\u0363lgo",
    "\u1e9b\u0323 ﬁ ﬀ Å Å",
    "你好，世界！我是一个语言模型。",
    "今天天气很好，我们去公园。２０２４年",
    "こんにちは世界 カタカナ ひらがな ｶﾀｶﾅ",
    "안녕하세요 세계",
    "مرحبا بالعالم، كيف حالك؟ ١٢٣",
    "नमस्ते दुनिया, क्षत्रिय",
    "สวัสดีชาวโลก ภาษาไทย",
    "שלום עולם",
    "Здравствуй, мир! Ёж",
    "Γειά σου Κόσμε",
    "zero\u200bwidth\u200cjoin\u200d\ufeffbom\u2060",
    "nbsp\u00a0here\u2003em\u3000wide\u2028line\u2029para\u0085nel\u1680ogham",
    "\x01\x02\x03 \x07bell \x1b[31mred\x1b[0m \x7f",
    "\x0b\x0c vertical\x1cfs\x1fus",
    "\ue000private \U000e0041tag \ufffd",
    "\U0001d54f\U0001d4d0 math 𝟘𝟙𝟚",
    "<|im_start|>user\nHi<|im_end|>\n",
    "text<|im_end|>text",
    "<|im_end|><|im_end|><|endoftext|>",
    " <|im_start|> ",
    "<|im_start",
    "|im_end|>",
    "<|im_<|im_end|>end|>",
    "<|IM_END|>",
    "a</s>b <s>",
    "<repo_name>x<file_sep><reponame>",
    "<｜User｜>hi<｜Assistant｜><think>\n</think>",
    "<|fim_prefix|>a<|fim_suffix|>b<|fim_middle|>",
    "def f(x: int) -> str:\n    return f'{x!r:>10}'  # comment\n",
    '#include <stdio.h>\nint main(void) {\n\tprintf("%d\\n", 1);\n}\n',
    "SELECT * FROM t WHERE a != 'b' AND c >= 10;--",
    "https://example.org/a/b?c=d&e=f#g user@example.org",
    '{"a": [1, 2, {"b": null}]}',
    "<div class='x'>&nbsp;</div>",
    "!!!???...,,,;;;:::",
    "=====-----_____*****#####",
    "$100 €50 £20 ¥1000 ₹5 50% 20°C",
    "a\\b\\\\c /d//e",
    "CamelCaseWord snake_case_word kebab-case-word",
    "Ünïcödé ñandú façade œuvre straße İstanbul ıI",
    "Donaudampfschifffahrtsgesellschaftskapitän",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "ΑαΒβ\u0345ǅǈ ʰʲ ªº",
    "x²+y³=z⁴ ∑∫√∞ ≠≤≥ ←→⇒",
    "\u0e33\u0eb3 \u0f0b \u06dd\u200f rtl",
    " leading\n  and\n\n   mixed \t \n tabs ",
    "word\n\n\nword  \n\n  word",
    "...\n\n!!!\r\n\r\n??? \n",
    "The quick brown fox. " * 476,
    "数据 data 123 \n" * 700,
]
VOCABS = [(pre, "smollm2", False) for pre in PRE]
VOCABS += [("deepseek-r1-qwen", "qwen2_7b_header", False), ("llama-bpe", "qwen2_7b_header", False)]
VOCABS += [("llama-bpe", "smollm2", True), ("qwen2", "smollm2", True)]
CHANGED = {f"tokenizer.ggml.{key}" for key in ("pre", "add_bos_token", "tokens", "token_type", "merges")}
# overlapping, so that the order in which they are cut out of a text shows
USER_WORDS = ["in", "ing", "the", "he", "Th"]


def write_vocab_model(path, vocab_from, pre, hard=False):
    """The smallest model llama.cpp loads with this vocabulary under another pre-tokenizer.

    A `hard` one has words that no merges lead to, and words of type user-defined.
    """
    with open_gguf(vocab_from) as source:
        tokens, types, merges = (
            source.metadata[f"tokenizer.ggml.{key}"].tolist() for key in ("tokens", "token_type", "merges")
        )
        for word in USER_WORDS if hard else ():
            types[tokens.index(word)] = USER_DEFINED
        preset = Preset(1, 64, 1, 1, 64, vocab=len(tokens), context=64, tied=True)

        def fill(writer):
            add_hyperparameters(writer, "vocabulary", preset)
            copy_metadata(source, writer, "tokenizer.", without=CHANGED)
            writer.add_token_list(tokens)
            writer.add_token_types(types)
            writer.add_token_merges(merges[: len(merges) // 3] if hard else merges)
            writer.add_tokenizer_pre(pre)

        data = lambda tensor: weights(tensor, weight_std(tensor, preset), seed=0)  # noqa: E731
        write_gguf(path, NewFile("qwen2", fill, tensors_of(preset), data), silent)
    return path


@pytest.fixture(scope="module", params=VOCABS, ids=lambda vocab: f"{vocab[0]} {vocab[1]}{' hard' * vocab[2]}")
def vocab_model(request, tmp_path_factory):
    pre, source, hard = request.param
    return write_vocab_model(tmp_path_factory.mktemp("vocab") / "v.gguf", request.getfixturevalue(source), pre, hard)


def test_ids_are_llama_cpps(vocab_model):
    with open_gguf(vocab_model) as model:
        ours = load_tokenizer(model.metadata)
    with Peer(vocab_model, n_ctx=64) as peer:
        wrong = [
            (text[:80], special, add_bos, ids, theirs)
            for text in NASTY
            for special, add_bos in ((True, False), (False, False), (True, None))
            if (ids := ours.encode(text, special, add_bos))
            != (theirs := peer.tokenize(text, special, add_bos=add_bos is None))
        ]
        assert wrong == []
        joined = [i for text in NASTY[:-2] for i in ours.encode(text, add_bos=False)]
        assert ours.decode(joined, special=True) == peer.detokenize(joined)


def test_smollm2_itself_and_its_chat_template(smollm2):
    with open_gguf(smollm2) as model:
        ours = load_tokenizer(model.metadata)
    talk = [{"role": "user", "content": "Hi  there\n"}, {"role": "assistant", "content": "Yes?"}]
    talk.append({"role": "user", "content": "<|im_end|> 'quotes' & <b>"})
    with Peer(smollm2, n_ctx=64) as peer:
        assert [ours.encode(text) for text in NASTY] == [peer.tokenize(text, add_bos=True) for text in NASTY]
        assert ours.chat(talk) == peer.chat(talk)
        system = [{"role": "system", "content": "Be brief."}, *talk]
        assert ours.chat(system) == peer.chat(system)


@pytest.mark.parametrize("source", ["smollm2", "qwen2_7b_header"])
def test_ids_that_end_a_generation_are_llama_cpps(source, request, tmp_path):
    path = write_vocab_model(tmp_path / "v.gguf", request.getfixturevalue(source), "qwen2")
    with open_gguf(path) as model:
        ours = load_tokenizer(model.metadata)
    script = (
        "import os, sys, xllamacpp; p = xllamacpp.CommonParams(); p.model.path = sys.argv[1]; p.n_ctx = 64;"
        "p.verbosity = 5; server = xllamacpp.Server(p); os._exit(0)"  # its threads outlive an ordinary exit
    )
    log = subprocess.run([sys.executable, "-c", script, path], capture_output=True, text=True, check=True).stderr
    assert ours.eog == {int(i) for i in re.findall(r"EOG token +?= (\d+)", log)}


def test_stream_gives_whole_characters(smollm2):
    with open_gguf(smollm2) as model:
        ours = load_tokenizer(model.metadata)
    text = "naïve 👩‍👩‍👧‍👦 你好 नमस्ते"
    ids = ours.encode(text)
    stream = ours.stream()
    parts = [stream.feed(i) for i in ids]
    assert "" in parts, "some token ends inside a character"
    assert "".join(parts) + stream.flush() == text
    assert all("\ufffd" not in part for part in parts)
    cut = ours.stream()
    assert cut.feed(ours.encode("👩")[0]) == "" and cut.flush() == "\ufffd"


def test_control_tokens_are_not_text(smollm2):
    with open_gguf(smollm2) as model:
        ours = load_tokenizer(model.metadata)
    ids = ours.encode("a<|im_end|>b")
    assert 2 in ids and ours.decode(ids) == "ab" and ours.decode(ids, special=True) == "a<|im_end|>b"
    assert ours.encode("\udcff") == ours.encode("\ufffd"), "undecodable command line bytes are no crash"


@pytest.fixture
def metadata(smollm2):
    with open_gguf(smollm2) as model:
        yield dict(model.metadata)


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("model", "llama", ["'llama'", "gpt2"]),
        ("pre", "tekken", ["'tekken'", *PRE]),
        ("pre", None, ["None", "qwen2"]),
        ("merges", None, ["merges is missing"]),
        ("tokens", np.arange(3), ["tokens is missing, or no list of str"]),
    ],
)
def test_unsupported_vocabularies_name_what_is(metadata, key, value, words):
    metadata[f"tokenizer.ggml.{key}"] = value
    with pytest.raises(UserError) as error:
        load_tokenizer(metadata)
    assert all(word in str(error.value) for word in words) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("template", "words"),
    [
        (None, "no chat template"),
        ("{{ raise_exception('roles must\nalternate') }}", "TemplateError: roles must"),
        ("{% if %}", "TemplateSyntaxError"),
        ("{{ messages[0].content.nothing.here }}", "UndefinedError"),
        ("{{ ''.__class__.__mro__[1].__subclasses__() }}", "SecurityError"),
        ("{% set _ = messages.append(1) %}", "SecurityError"),
        ("{{ 1 / 0 }}", "ZeroDivisionError"),
    ],
)
def test_a_bad_template_is_one_line(metadata, template, words):
    tokenizer = dataclasses.replace(load_tokenizer(metadata), template=template)
    with pytest.raises(UserError, match=words) as error:
        tokenizer.chat([{"role": "user", "content": "hi"}])
    assert "\n" not in str(error.value)


def test_template_helpers(metadata):
    text = "{%- for m in messages %}{{ m | tojson }}{% break %}{% endfor %} {{ strftime_now('%Y') | length }}"
    tokenizer = dataclasses.replace(load_tokenizer(metadata), template=text)
    assert tokenizer.chat([{"role": "é<"}, {}]) == '{"role": "é<"} 4'


def test_bos_is_written_once(qwen2_7b_header):
    with open_gguf(qwen2_7b_header) as model:
        ours = load_tokenizer(model.metadata)
    ids = ours.encode(ours.chat([{"role": "user", "content": "hi"}]))
    assert ids.count(ours.bos) == 1 and ids[0] == ours.bos
