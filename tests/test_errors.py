"""No secret gets into what is kept, logged or shown; what is none stays as it is."""

from __future__ import annotations

import pytest

from raysearch.errors import UserError
from raysearch.text.redaction import is_secret_name, redact, redacted, secret_in, secrets_of_address

TOKEN = "hf_" + "aB3" * 11


#: What a text looks like once its secrets are replaced.
SECRETS = [
    ("postgresql://me:s3cret@db:5432/mlflow", "postgresql://me:***@db:5432/mlflow"),
    ("postgresql+psycopg2://me:p@ss:w@rd@db/mlflow", "postgresql+psycopg2://me:***@db/mlflow"),
    ("postgresql://me:sl/ash@db/mlflow", "postgresql://me:***@db/mlflow"),
    ("https://me:s3cret@mlflow.example/path", "https://me:***@mlflow.example/path"),
    ("https://s3cret-t0ken@mlflow.example", "https://***@mlflow.example"),
    ("failed: 'http://a:b@h/x' and http://c:d@h/y", "failed: 'http://a:***@h/x' and http://c:***@h/y"),
    ("postgresql://db/mlflow?user=me&password=s3cret&sslmode=require", "postgresql://db/mlflow?user=me&password=***&sslmode=require"),
    ("postgresql+psycopg2://u:S3cr'etQ9@db/mlflow", "postgresql+psycopg2://u:***@db/mlflow"),
    ('Could not parse "postgresql://u:S3"cr/et@db/x" here', 'Could not parse "postgresql://u:***@db/x" here'),
    ("postgresql://u:12/34'x@db/x", "postgresql://u:***@db/x"),
    ("mssql+pyodbc:///?odbc_connect=DRIVER%3Dx%3BUID%3Dme%3BPWD%3Ds3c%2Fr3t%3BDB%3Dx", "mssql+pyodbc:///?odbc_connect=***"),
    ("https://store.example/a?sv=1&sig=Ab%2F9c&se=2", "https://store.example/a?sv=1&sig=***&se=2"),
    ("password='s3c ret' user=me", "password=*** user=me"),
    ("mssql+pyodbc:///?odbc_connect=PWD%3D%7Bs3%3Bc/r3t%7D%3BDB%3Dx", "mssql+pyodbc:///?odbc_connect=***"),
    ("in //me:s3c'r3t@host", "in //me:***@host"),
    ("DRIVER=x;PWD=s3cr'et;UID=me", "DRIVER=x;PWD=***;UID=me"),
    (f"runs_{TOKEN}", "runs_***"),
    (f"model.path={TOKEN}", "model.path=***"),
    ("hub_token=s3cret api_key=s3cret", "hub_token=*** api_key=***"),
    ("Authorization: Bearer abcdefghijkl", "Authorization: Bearer ***"),
    ("Authorization: Basic bWU6c2VjcmV0", "Authorization: Basic ***"),
]  # fmt: skip
#: Texts that only look as if they held one.
HARMLESS = [
    "sqlite:////home/me/mlruns/mlflow.db",
    "http://127.0.0.1:5000",
    "http://tracking-host:5000/path@v2",
    "{'uri':'http://host:5000','by':'me@example.org'}",
    "see http://host:5000, or ask me@example.org",
    "postgresql://me@db/mlflow",
    "http://me@mlflow.example",
    "Basic arithmetic of a Bearer",
    "models/me@example.org/x",
    "postgresql://db:5432/mlflow",
    "data.n_tokens=8 new_tokens=64 tokens=mean",
    "hf_checkpoints/llama",
    "nats per token: 2.75",
    "greedy-m5-3fa2c1d0 {21,22,25}",
    "https://huggingface.co/org/model/resolve/main/x.gguf",
]


def test_secrets_are_replaced_once() -> None:
    wrong = [text for text, shown in SECRETS if redact(text) != shown or redact(shown) != shown]
    assert not wrong


def test_what_is_none_stays() -> None:
    wrong = [text for text in HARMLESS if redact(text) != text or secret_in(text) is not None]
    assert not wrong


def test_a_secret_in_a_text_is_described_without_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEAM_API_KEY", "correct-horse-battery-9")
    described = {secret_in(text) for text, _ in SECRETS}
    assert described == {"a password or a token"}
    assert secret_in("postgresql://me:s3 cret@db/mlflow") == "a password or a token"
    assert secret_in("/data/correct-horse-battery-9/x.txt") == "the value of TEAM_API_KEY"
    assert {secret_in(shown) for _, shown in SECRETS} == {None}, "what is replaced already"


def test_some_names_are_those_of_secrets() -> None:
    names = ("token", "hub_token", "api_key", "DB_PASSWORD", "client_secret", "n_tokens", "tokenizer", "PWD", "path")
    assert [name for name in names if is_secret_name(name)] == [*names[:5]]


def test_configurations_are_redacted_by_name_and_by_text() -> None:
    config = {
        "model": {"path": "org/model", "token": "abc", "n_tokens": 5, "tokenizer": "x"},
        "tracking": {"uri": "https://u:p@h", "experiment": None},
        "words": ["a", f"b={TOKEN}"],
        "client_secret": "",
    }
    assert redacted(config) == {
        "model": {"path": "org/model", "token": "***", "n_tokens": 5, "tokenizer": "x"},
        "tracking": {"uri": "https://u:***@h", "experiment": None},
        "words": ["a", "b=***"],
        "client_secret": "",
    }


def test_values_of_secret_variables_are_told_wherever_they_stand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEAM_API_KEY", "correct-horse-battery-9")
    monkeypatch.setenv("POSTGRES_PASSWORD", "postgres")  # a word that means something too
    assert redact("experiment correct-horse-battery-9 of postgres") == "experiment *** of postgres"


def test_the_folder_that_the_shell_names_is_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PWD", "/home/ann/projects/2026")
    assert redact("wrote /home/ann/projects/2026/healed") == "wrote /home/ann/projects/2026/healed"


def test_no_error_holds_a_secret() -> None:
    error = UserError("tracking.uri=https://me:s3cret@host is wrong")
    assert str(error) == "tracking.uri=https://me:***@host is wrong"
    assert "s3cret" not in repr(error)


def test_an_address_in_a_word_or_a_variable_tells_its_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STORE", "mssql+pyodbc:///?odbc_connect=DRIVER%3Dx%3BPWD%3D%7Bs3cr+t%20Q9%7D")
    monkeypatch.setattr("sys.argv", ["raysearch", "search", "tracking.uri=postgresql+psycopg2://u:S3cr%27et/Q9 @db/x"])
    for secret in ("S3cr%27et/Q9 ", "S3cr'et/Q9 ", "S3cr%27et%2FQ9%20", "DRIVER=x;PWD={s3cr+t Q9}"):
        assert redact(f"it was <{secret}>") == "it was <***>", secret


def test_addresses_are_read_as_sqlalchemy_reads_them() -> None:
    from sqlalchemy import make_url

    for password in ("pw", "S3cr'et", "a/b", "a:b", "1/2x", "p%40ss", 'q"uote'):
        address = f"postgresql+psycopg2://me:{password}@host:5432/db"
        assert make_url(address).password in secrets_of_address(address), password
