"""No secret gets into what is kept, logged or shown; what is none stays as it is."""

from __future__ import annotations

import pytest

from raysearch.errors import UserError, hidden_keys, redact, redacted

TOKEN = "hf_" + "aB3" * 11


#: What a text looks like once its secrets are replaced.
SECRETS = [
    ("postgresql://me:s3cret@db:5432/mlflow", "postgresql://me:***@db:5432/mlflow"),
    ("postgresql+psycopg2://me:p@ss:w@rd@db/mlflow", "postgresql+psycopg2://me:***@db/mlflow"),
    ("postgresql://me:sl/ash@db/mlflow", "postgresql://me:***@db/mlflow"),
    ("https://me:s3cret@mlflow.example/path", "https://me:***@mlflow.example/path"),
    ("https://s3cret@mlflow.example", "https://***@mlflow.example"),
    ("failed: 'http://a:b@h/x' and http://c:d@h/y", "failed: 'http://a:***@h/x' and http://c:***@h/y"),
    ("postgresql://db/mlflow?user=me&password=s3cret&sslmode=require", "postgresql://db/mlflow?user=me&password=***&sslmode=require"),
    (f"model.path={TOKEN}", "model.path=***"),
    ("hub_token=s3cret api_key=s3cret", "hub_token=*** api_key=***"),
    ("Authorization: Bearer abcdefghijkl", "Authorization: Bearer ***"),
]  # fmt: skip
#: Texts that only look as if they held one.
HARMLESS = [
    "sqlite:////home/me/mlruns/mlflow.db",
    "http://127.0.0.1:5000",
    "http://tracking-host:5000/path@v2",
    "postgresql://me@db/mlflow",
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
    wrong = [text for text in HARMLESS if redact(text) != text]
    assert not wrong


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
    assert list(hidden_keys(redacted(config))) == ["model.token", "tracking.uri", "words"]


def test_values_of_secret_variables_are_told_wherever_they_stand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEAM_API_KEY", "correct-horse-battery-9")
    monkeypatch.setenv("POSTGRES_PASSWORD", "postgres")  # a word that means something too
    assert redact("experiment correct-horse-battery-9 of postgres") == "experiment *** of postgres"


def test_no_error_holds_a_secret() -> None:
    error = UserError("tracking.uri=https://me:s3cret@host is wrong")
    assert str(error) == "tracking.uri=https://me:***@host is wrong" and "s3cret" not in repr(error)
