"""Command lines keep their secrets."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpudeck.collectors.redaction import LENGTH, looks_secret, redact

# Letters and digits that no name, flag or program in these tests contains.
SECRETS = st.text("QXZqxz0789", min_size=8, max_size=40)
AWKWARD_SECRETS = st.text("QXZqxz0789 /@:=,;&'\"$#", min_size=1, max_size=20).map(lambda text: f"QZX{text}ZXQ")


@pytest.mark.parametrize(
    ("command", "shown"),
    [
        (["python", "train.py", "--lr", "0.1"], "python train.py --lr 0.1"),
        (["vllm", "--max-tokens", "512", "--tokenizer", "gpt2"], "vllm --max-tokens 512 --tokenizer gpt2"),
        (["run", "--token-file", "/etc/token"], "run --token-file /etc/token"),
        (["run", "--token", "abc", "x"], "run --token *** x"),
        (["run", "--use-auth", "--lr", "1"], "run --use-auth --lr 1"),
        (["run", "--password=my long one", "x"], "run --password=*** x"),
        (["run", "-api-key", "abc"], "run -api-key ***"),
        (["env", "HF_TOKEN=abc", "python"], "env HF_TOKEN=*** python"),
        (["run", "model.apiKey=abc", "lr=3"], "run model.apiKey=*** lr=3"),
        (["curl", "-u", "alice:abc", "x"], "curl -u alice:*** x"),
        (["curl", "-H", "X-Api-Key: abc", "x"], "curl -H X-Api-Key:*** x"),
        (["psql", "postgres://alice:p@ss/w@db:5432/x"], "psql postgres://alice:***@db:5432/x"),
        (["git", "clone", "https://abc@host/x.git"], "git clone https://***@host/x.git"),
        (["sh", "-c", "cd /x; DB_PASS='a b' run --secret c d"], "sh -c cd /x; DB_PASS=*** run --secret *** d"),
        (["run", '{"user": "u", "password": "a b", "n": 1}'], 'run {"user": "u", "password": *** "n": 1}'),
        (["worker: rank 0"], "worker: rank 0"),
        (["title --token abc rank 0"], "title --token *** rank 0"),
        (["x: TOKEN=abc"], "x: TOKEN=***"),
    ],
)
def test_secrets_are_hidden_and_the_rest_is_shown(command: list[str], shown: str) -> None:
    assert redact(command) == shown


@pytest.mark.parametrize(
    "token",
    [
        "hf_abcdEFGH1234",
        "sk-proj-abcdefgh1234",
        "ghp_abcdefgh1234",
        "github_pat_abcdefgh1234",
        "glpat-abcdefgh1234",
        "xoxb-1234-abcdefgh",
        "nvapi-abcdefgh1234",
        "AKIAABCDEFGHIJKLMNOP",
        "eyJhbGciOiJI.eyJzdWIiOiIx.c2lnbmF0dXJl",
    ],
)
def test_tokens_of_known_makers_are_hidden_wherever_they_stand(token: str) -> None:
    assert redact(["run", token, f"--x={token}", f"https://host/{token}/y"]) == "run *** --x=*** https://host/***/y"


@pytest.mark.parametrize("name", ["HF_TOKEN", "apiKey", "PGPASSWORD", "aws_secret_access_key", "wandb.api-key", "auth"])
def test_names_of_secrets_are_known(name: str) -> None:
    assert looks_secret(name)


@pytest.mark.parametrize("name", ["max_tokens", "tokenizer", "keyframes", "password_file", "authors", "token-dim", "1"])
def test_names_that_only_sound_alike_are_left_alone(name: str) -> None:
    assert not looks_secret(name)


@given(AWKWARD_SECRETS)
def test_argument_after_a_secret_flag_never_shows(secret: str) -> None:
    shown = redact(["run", "--password", secret, "--lr", "1"])
    assert shown == "run --password *** --lr 1"


@given(AWKWARD_SECRETS, st.sampled_from(["--api-key", "MY_SECRET", "db.password", "++x.token"]))
def test_value_assigned_to_a_secret_name_never_shows(secret: str, name: str) -> None:
    assert redact(["run", f"{name}={secret}", "--lr", "1"]).startswith(f"run {name}=***")
    assert "ZXQ" not in redact(["run", f"{name}={secret}", "--lr", "1"])


@given(SECRETS)
def test_secret_inside_a_shell_command_never_shows(secret: str) -> None:
    script = f"export A_TOKEN={secret} && curl -H 'Authorization: Bearer {secret}' ftp://u:{secret}@h --key {secret}"
    assert secret not in redact(["sh", "-c", script])


@given(st.lists(st.text(max_size=200), max_size=20))
def test_any_command_line_becomes_one_short_printable_line(arguments: list[str]) -> None:
    shown = redact(arguments)
    assert shown.isprintable()
    assert len(shown) <= LENGTH


def test_control_characters_do_not_reach_a_terminal() -> None:
    assert redact(["a\x1b[31mb", "c\u202ed", "e\tf\ng"]) == "a[31mb cd e f g"


def test_control_characters_do_not_hide_a_secret() -> None:
    assert redact(["--pass\x1bword=abc"]) == "--password=***"


@pytest.mark.parametrize("text", ["a" * 4096, "a=" * 2048, "--a " * 1024, "://" * 1365, "'\"" * 2048, " " * 4096])
def test_long_hostile_arguments_are_taken_in_their_stride(text: str) -> None:
    assert len(redact([text, f"--token={text}", f"x {text} TOKEN={text}"])) <= LENGTH
