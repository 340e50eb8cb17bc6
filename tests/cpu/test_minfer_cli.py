"""The minfer command: what it prints, and that a user's mistake is one clear line, exit code 2 and nothing on disk."""

import json

import pytest

from cli import run_main
from minfer.cli import main
from minfer.gguf import open_gguf
from tiny import write_llama


@pytest.fixture
def minfer(monkeypatch, capsys):
    return lambda *args: run_main(main, "minfer", args, monkeypatch, capsys)


@pytest.fixture
def model(tmp_path):
    return write_llama(tmp_path / "m.gguf")


def damaged(tmp_path, name, source):
    """Files that are wrong in one way each, made from a good one's bytes."""
    data = source.read_bytes()
    end = min(t.offset for t in open_gguf(source).tensors.values())
    bad = {
        "empty": b"", "not-gguf": b"PK\3\4" + data[4:], "v1": data[:4] + b"\1\0\0\0" + data[8:],
        "truncated-header": data[: end // 2], "no-data": data[:end],
    }[name]  # fmt: skip
    (tmp_path / f"{name}.gguf").write_bytes(bad)
    return tmp_path / f"{name}.gguf"


ONE_LINE = [
    (["plan", "nosuch.gguf"], {}, "nosuch.gguf: no such file"),
    (["plan", "smolm2-135m"], {}, "did you mean smollm2-135m?"),
    (["plan", "."], {}, "a directory, not a GGUF file"),
    (["plan", "{empty}"], {}, "not a GGUF file, it is empty"),
    (["plan", "{not-gguf}"], {}, "not a GGUF file"),
    (["plan", "{v1}"], {}, "GGUF version 1 (supported: 2 and 3)"),
    (["plan", "{truncated-header}"], {}, "inside its header"),
    (["generate", "{no-data}", "-p", "x"], {}, "header-only or truncated (enough for plan)"),
    (["bench", "{no-data}"], {}, "header-only or truncated (enough for plan)"),
    (["dequantize", "{no-data}", "out.gguf"], {}, "header-only or truncated"),
    (["plan", "{gemma}"], {}, "architecture 'gemma3' is not supported; supported: llama, qwen2"),
    (["bench", "{iq4}"], {}, "tensor blk.0.attn_q.weight has type IQ4_NL, which cannot be read as f32 (supported: F32"),
    (["bench", "{good}", "-p", "0", "-n", "0"], {}, "nothing to time"),
    (["bench", "{good}", "-p", "x"], {}, "-p 'x' is not allowed"),
    (["bench", "{good}", "-o", "xml"], {}, "-o 'xml' is not allowed: give one of md, json, jsonl, csv"),
    (["bench", "{good}", "-r", "0"], {}, "'--repetitions'"),
    (["plan", "{good}", "--bandwidth", "fast"], {}, "--bandwidth fast is not allowed"),
    (["plan", "{good}"], {"MINFER_X": ""}, "unknown switch MINFER_X=''"),
    (["plan", "{good}"], {"MINFER_NVTX": ""}, "switch MINFER_NVTX='' is not allowed: use 0 or 1"),
    (["plan", "{good}"], {"MINFER_NVTX": "yes"}, "switch MINFER_NVTX='yes' is not allowed: use 0 or 1"),
    (["plan", "{good}"], {"MINFER_NVXT": "1"}, "did you mean MINFER_NVTX?"),
    (["bench", "{good}"], {"MINFER_LAUNCH_LOG": "/nosuch/log"}, "cannot be written"),
    (["plan"], {}, "Missing argument 'MODEL'"),
    (["paln"], {}, "No such command 'paln'"),
    (["plan", "{good}", "--jsno"], {}, "No such option"),
]


@pytest.mark.parametrize(("args", "env", "message"), ONE_LINE)
def test_a_mistake_is_one_line_and_exit_code_2(minfer, monkeypatch, tmp_path, model, args, env, message):
    files = {n: damaged(tmp_path, n, model) for n in ("empty", "not-gguf", "v1", "truncated-header", "no-data")}
    files["gemma"] = write_llama(tmp_path / "gemma.gguf", arch="gemma3")
    files["iq4"] = write_llama(tmp_path / "iq4.gguf", quant="IQ4_NL")
    files["good"] = model
    monkeypatch.chdir(tmp_path)
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    before = sorted(tmp_path.iterdir())
    done = minfer(*(files.get(a.strip("{}"), a) for a in args))
    assert done.code == 2 and done.out == ""
    assert done.err.count("\n") == 1 and done.err.startswith("minfer: ") and message in done.err
    assert sorted(tmp_path.iterdir()) == before


def test_a_header_alone_can_be_planned(minfer, tmp_path, model):
    done = minfer("plan", damaged(tmp_path, "no-data", model), "--json")
    assert done.code == 0 and json.loads(done.out)["totals"]["launches"] == 2 * 17 + 4


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["-p", ""], "the prompt is empty"),
        (["-p", "one two three four five six", "--ctx", "4"], "the prompt has 6 tokens, --ctx 4 holds fewer"),
        (["-p", "x", "--temp", "-1"], "--temp -1.0 is not allowed"),
        (["-p", "x", "--top-p", "0"], "--top-p 0.0 is not allowed"),
        (["-p", "x", "--seed", "-3"], "--seed -3 is not allowed"),
    ],
)
def test_a_bad_prompt_or_setting_is_one_line(minfer, smollm2, args, message):
    done = minfer("generate", "smollm2-135m", *args)
    assert done.code == 2 and done.err.count("\n") == 1 and message in done.err


def test_generate_gives_the_known_answer_and_streams_what_json_reports(minfer, smollm2):
    args = ("generate", "smollm2-135m", "-p", "The capital of France is", "--temp", "0", "-n", "6")
    text, data = minfer(*args), json.loads(minfer(*args, "--json").out)
    assert text.out.startswith(" Paris.") and text.out == data["text"] + "\n"
    assert len(data["ids"]) == 6 and len(data["prompt_ids"]) == 5


def test_generate_with_a_seed_repeats_itself_and_another_seed_does_not(minfer, smollm2):
    def text(seed):
        args = ("-p", "Once upon a time", "--temp", "1.2", "--seed", seed, "-n", "12", "--json")
        return json.loads(minfer("generate", "smollm2-135m", *args).out)["ids"]

    assert text(1) == text(1) != text(2)


def test_chat_answers_and_stops_by_itself(minfer, smollm2):
    args = ("-p", "What is the capital of France? Answer in one word.", "--chat", "--temp", "0", "-n", "40", "--json")
    data = json.loads(minfer("generate", "smollm2-135m", *args).out)
    assert "Paris" in data["text"] and len(data["ids"]) < 40


def test_bench_rows_have_llama_bench_fields_and_the_same_tokens_every_time(minfer, model):
    args = ("bench", model, "-p", "8", "-n", "4", "-d", "0,3", "-r", "2", "-o", "json")
    rows = json.loads(minfer(*args).out)
    assert [(r["n_prompt"], r["n_gen"], r["n_depth"]) for r in rows] == [(8, 0, 0), (0, 4, 0), (8, 0, 3), (0, 4, 3)]
    for r in rows:
        assert len(r["samples_ns"]) == len(r["samples_ts"]) == 2
        assert r["avg_ns"] == round(sum(r["samples_ns"]) / 2)
        assert r["samples_ts"][0] == pytest.approx(1e9 * (r["n_prompt"] + r["n_gen"]) / r["samples_ns"][0])
    again = json.loads(minfer(*args).out)
    assert [r["output_hash"] for r in rows] == [r["output_hash"] for r in again]
    assert rows[0]["output_hash"] is None and rows[1]["output_hash"] != rows[3]["output_hash"]


def test_bench_forms_agree(minfer, model):
    def out(form):
        return minfer("bench", model, "-p", "0", "-n", "2", "-r", "1", "-o", form).out

    assert "| tg2 |" in out("md")
    assert out("csv").splitlines()[0].split(",") == list(json.loads(out("json"))[0]) == list(json.loads(out("jsonl")))


def test_graph_as_dot_names_every_node_and_edge(minfer, model):
    dot = minfer("graph", model, "--dot").out
    assert dot.startswith("digraph decode {") and dot.count("subgraph cluster_") == 2
    lines = minfer("graph", model).out.splitlines()
    assert dot.count("[label=") == len(lines) == 2 + 2 * 17 + 4
    assert dot.count(" -> ") == sum(len(json.loads(line.split("<- ")[1])) for line in lines)


def test_graph_trace_prints_each_launch(minfer, monkeypatch, model):
    monkeypatch.setenv("MINFER_GRAPH_TRACE", "1")
    err = minfer("bench", model, "-p", "0", "-n", "1", "-r", "1", "--no-warmup").err
    assert len(err.splitlines()) == 2 * 17 + 4
    assert "1 matmul ffn_down: matmul_f32 (64, 1, 1)" in err
