"""Tokens to text and back, with a small vocabulary made here."""

import json
import subprocess
import sys
from collections import deque
from pathlib import Path

import gguf
import pytest

from enginecore_client import EngineCoreRequest, RequestRejectedError, SamplingParams
from enginecore_client._faces.sequences import sequences_of
from enginecore_client._vocabulary import _letters
from enginecore_client.text import Detokenizer, Tokenizer

TEMPLATE = (
    "{% for m in messages %}{{ '<s>' + m.role + ': ' + m.content + '</s>' }}{% endfor %}"
    "{% if messages[0].role == 'robot' %}{{ raise_exception('no robots') }}{% endif %}"
    "{% if add_generation_prompt %}{{ '<s>' + who | default('assistant') + ': ' }}{% endif %}"
)
SPECIAL = ["<s>", "</s>", "<eot>"]


def alphabet() -> list[str]:
    return [letter for letter, _ in sorted(_letters().items(), key=lambda item: item[1])]


def write_gguf(path: Path, **changes: str) -> Path:
    tokens = [*SPECIAL, *alphabet(), "he", "ll", "llo", "hello"]
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tokenizer_model(changes.get("model", "gpt2"))
    writer.add_tokenizer_pre(changes.get("pre", "smollm"))
    writer.add_token_list(tokens)
    writer.add_token_types([3] * len(SPECIAL) + [1] * (len(tokens) - len(SPECIAL)))
    writer.add_token_merges(["h e", "l l", "ll o", "he llo"])
    writer.add_eos_token_id(1)
    writer.add_eot_token_id(2)
    writer.add_bos_token_id(0)
    writer.add_add_bos_token(changes.get("bos") == "yes")
    writer.add_chat_template(TEMPLATE)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture(scope="module")
def gguf_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gguf(tmp_path_factory.mktemp("model") / "small.gguf")


@pytest.fixture(scope="module")
def tokenizer(gguf_file: Path) -> Tokenizer:
    return Tokenizer.load(gguf_file)


FAMILY = "\N{WOMAN}\u200d\N{WOMAN}\u200d\N{GIRL}"
TEXTS = [
    "",
    "hello",
    "It's 12 o'clock",
    f"naïve 日本語 🙂{FAMILY}",
    "a\n\n\tb  c",
    "\x00\x7f\u00a0",
]


@pytest.mark.parametrize("text", TEXTS)
def test_there_and_back(tokenizer: Tokenizer, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_merges_special_tokens_and_digits(tokenizer: Tokenizer) -> None:
    pieces = [tokenizer.bytes_of([i]) for i in tokenizer.encode("<s>hello</s>12")]
    assert pieces == [b"", b"hello", b"", b"1", b"2"]


def test_ids_outside_the_vocabulary_have_no_text(tokenizer: Tokenizer) -> None:
    assert tokenizer.decode([-1, 10**6]) == ""


def test_bos_where_the_model_wants_it(tmp_path: Path) -> None:
    tokenizer = Tokenizer.load(write_gguf(tmp_path / "m.gguf", bos="yes"))
    assert tokenizer.encode("hello")[0] == 0
    assert tokenizer.encode_chat([{"role": "user", "content": "x"}]).count(0) == 2


def test_chat(tokenizer: Tokenizer) -> None:
    messages = [{"role": "user", "content": "hello"}]
    expected = tokenizer.encode("<s>user: hello</s><s>assistant: ")
    assert tokenizer.encode_chat(messages) == expected
    assert tokenizer.encode_chat(messages, continuation=True) == expected[: -len("assistant: ") - 1]
    assert tokenizer.encode_chat(messages, who="bot") == tokenizer.encode(
        "<s>user: hello</s><s>bot: "
    )


@pytest.mark.parametrize(
    ("messages", "text"),
    [([{"role": "robot", "content": "x"}], "no robots"), ([{"role": "user"}], "content")],
)
def test_refused_chats(tokenizer: Tokenizer, messages, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        tokenizer.encode_chat(messages)


def test_end_ids_are_filled_in(tokenizer: Tokenizer) -> None:
    assert tokenizer.eos_token_ids == (1, 2)
    params = tokenizer.complete(SamplingParams(stop_token_ids=[9]))
    assert params.eos_token_id == 1
    assert params.stop_token_ids == [9, 2]
    assert params.all_stop_token_ids == [1, 2, 9]
    params = tokenizer.complete(SamplingParams(ignore_eos=True))
    assert (params.stop_token_ids, params.all_stop_token_ids) == (None, [])
    again = tokenizer.complete(tokenizer.complete(SamplingParams(stop_token_ids=[9])))
    assert (again.stop_token_ids, again.all_stop_token_ids) == ([9, 2], [1, 2, 9])
    own = tokenizer.complete(SamplingParams(eos_token_id=5))
    assert (own.eos_token_id, own.all_stop_token_ids) == (5, [2, 5])


def test_words_to_avoid_get_their_ids(tokenizer: Tokenizer) -> None:
    params = tokenizer.complete(SamplingParams(bad_words=["hello", "12", "é"]))
    assert params.bad_words_token_ids == [
        tokenizer.encode("hello"), tokenizer.encode("12"), tokenizer.encode("é")
    ]  # fmt: skip
    kept = SamplingParams(bad_words=["x"], bad_words_token_ids=[[1]])
    assert tokenizer.complete(kept).bad_words_token_ids == [[1]]


@pytest.mark.parametrize("word", ["", "\ud800"])
def test_words_that_are_none_are_told(tokenizer: Tokenizer, word: str) -> None:
    with pytest.raises(ValueError, match=r"^bad_words: "):
        tokenizer.complete(SamplingParams(bad_words=["he", word]))


def test_half_a_character_is_no_text(tokenizer: Tokenizer) -> None:
    for encode in (
        tokenizer.encode,
        lambda text: tokenizer.encode_chat([{"role": "user", "content": text}]),
    ):
        with pytest.raises(ValueError, match="a character is half of one"):
            encode("hello \ud800")
    with pytest.raises(TypeError):
        tokenizer.encode(None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("stop_token_ids", 5),
        ("stop_token_ids", ["a"]),
        ("stop_token_ids", [[1]]),
        ("all_stop_token_ids", None),
        ("eos_token_id", "x"),
    ],
)
def test_what_a_tokenizer_stumbles_over_is_told_by_field(
    tokenizer: Tokenizer, field: str, value: object
) -> None:
    request = EngineCoreRequest("r", [5], sampling_params=SamplingParams(**{field: value}))
    with pytest.raises(RequestRejectedError) as caught:
        sequences_of(request, tokenizer, deque(), print)  # type: ignore[arg-type]
    assert caught.value.field.startswith(("sampling_params." + field, "sampling_params._" + field))


def test_special_tokens_may_be_shown(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("<s>hello</s>")
    reader = tokenizer.reader(SamplingParams(skip_special_tokens=False, stop=["</s>"]))
    assert "".join(reader.push([token]) for token in ids) == "<s>hello"
    assert reader.stopped == "</s>"
    assert tokenizer.reader(SamplingParams()).push(ids) == "hello"


@pytest.mark.parametrize("text", TEXTS)
def test_never_half_a_character(tokenizer: Tokenizer, text: str) -> None:
    detokenizer = Detokenizer(tokenizer)
    shown = []
    for token in tokenizer.encode(text):
        shown.append(detokenizer.push([token]))
        assert "\ufffd" not in shown[-1]
    assert "".join(shown) == text
    assert detokenizer.finish() == ""


def test_a_character_that_never_ends(tokenizer: Tokenizer) -> None:
    detokenizer = Detokenizer(tokenizer)
    first, *_ = tokenizer.encode("🙂")
    assert detokenizer.push([first]) == ""
    assert detokenizer.finish() == "\ufffd"


STOPS = [
    # pieces pushed, stop, include, shown at each push, rest
    (["ab", "cd"], ["x"], False, ["ab", "cd"], ""),
    (["ab", "cd"], ["bc"], False, ["a", ""], ""),
    (["ab", "cd"], ["bc"], True, ["a", "bc"], ""),
    (["ab", "xd"], ["bc"], False, ["a", "bxd"], ""),
    (["ab"], ["bc"], False, ["a"], "b"),
    (["aab", "aac"], ["aac"], False, ["aab", ""], ""),
    (["a a", "a b"], ["a b", "aa"], False, ["a ", ""], ""),
    (["stop here"], ["here", "op"], False, ["st"], ""),
    (["xyz"], ["xy", "xyz"], True, ["xyz"], ""),
    (["ab", "cd", "ef"], "bc", False, ["a", "", ""], ""),
]


@pytest.mark.parametrize(("pieces", "stop", "include", "shown", "rest"), STOPS)
def test_stop_strings(tokenizer: Tokenizer, pieces, stop, include, shown, rest) -> None:
    detokenizer = Detokenizer(tokenizer, stop, include_stop=include)
    assert [detokenizer.push(tokenizer.encode(piece)) for piece in pieces] == shown
    assert detokenizer.finish() == rest


def test_empty_stop_string(tokenizer: Tokenizer) -> None:
    with pytest.raises(ValueError, match="stop: an empty string"):
        Detokenizer(tokenizer, ["", "x"])


@pytest.mark.parametrize(
    ("changes", "text"),
    [({"model": "llama"}, "'llama'.*not supported"), ({"pre": "qwen2"}, "'qwen2'.*tokenizer.json")],
)
def test_other_kinds_are_refused(tmp_path: Path, changes, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        Tokenizer.load(write_gguf(tmp_path / "m.gguf", **changes))


def test_directories(tmp_path: Path, tokenizer: Tokenizer, gguf_file: Path) -> None:
    with pytest.raises(ValueError, match=r"holds neither tokenizer\.json nor"):
        Tokenizer.load(tmp_path)
    tokenizer._encoder.save(str(tmp_path / "tokenizer.json"))
    config = {
        "chat_template": TEMPLATE,
        "eos_token": {"content": "</s>"},
        "bos_token": "<s>",
        "add_bos_token": True,
    }
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [1, 2]}))
    read = Tokenizer.load(tmp_path)
    assert (read.eos_token_ids, read.vocab_size) == (tokenizer.eos_token_ids, tokenizer.vocab_size)
    for text in TEXTS:
        assert read.encode(text) == [0, *tokenizer.encode(text)]
        assert read.decode(read.encode(text)) == text
    messages = [{"role": "user", "content": "hello"}]
    assert read.encode_chat(messages) == tokenizer.encode_chat(messages)
    assert Tokenizer.load(gguf_file.parent).vocab_size == tokenizer.vocab_size


def test_not_a_gguf_file(tmp_path: Path) -> None:
    (tmp_path / "x.gguf").write_bytes(b"nothing of the kind, but long enough to look at")
    with pytest.raises(ValueError, match="not a GGUF file"):
        Tokenizer.load(tmp_path)


WITHOUT = """
import sys

absent, path = sys.argv[1], sys.argv[2]
sys.modules.update(dict.fromkeys(absent.split(",")))
import enginecore_client
from enginecore_client.text import Tokenizer

print(enginecore_client.SyncMPClient.__name__)
try:
    Tokenizer.load(path)
except ImportError as error:
    print(error)
"""


@pytest.mark.parametrize("absent", ["gguf", "tokenizers", "jinja2", "gguf,tokenizers,jinja2"])
def test_without_the_extra_the_client_works_and_text_says_what_to_install(
    gguf_file: Path, absent: str
) -> None:
    output = subprocess.run(
        [sys.executable, "-c", WITHOUT, absent, str(gguf_file)],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    named = absent.partition(",")[0]
    assert output.splitlines() == [
        "SyncMPClient",
        f"enginecore_client.text needs the package {named}: pip install 'enginecore-client[text]'",
    ]
