"""Refuses secrets in a configuration, which is recorded and shown, and names the environment variables for them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from raysearch.errors import UserError
from raysearch.text.redaction import secret_in
from raysearch.tracking.options import password_variables


def refuse_secrets(config: Mapping[str, Any]) -> None:
    """Refuse a configuration in which a value, or a name that the user chose, has a secret.

    Args:
        config: The values by key, or nested mappings of them.

    Raises:
        UserError: A sentence for each key with a secret. The sentences do not contain the secrets.
    """
    secrets = {key: refusal(key, text, secret) for key, text in _texts("", config) if (secret := secret_in(text))}
    if secrets:
        raise UserError(*secrets.values())


def refusal(key: str, text: str, secret: str) -> str:
    """Return the sentence that refuses a secret.

    Args:
        key: The dotted key of the value.
        text: The value.
        secret: What its secret is, such as ``a password or a token``.

    Returns:
        One sentence, which names the environment variable to use.
    """
    variables = "HF_TOKEN if it is a token of the Hugging Face Hub"
    if key == "tracking.uri":
        variables = password_variables(text)
    elif key == "cluster.address":
        variables = "RAY_AUTH_MODE=token and RAY_AUTH_TOKEN"
    return f"{key} has {secret}, which would be recorded; remove it from the value, and set {variables}"


def _texts(key: str, value: Any) -> Iterator[tuple[str, str]]:
    """Yield each text of a value and each name in it, with the dotted key that holds it."""
    if isinstance(value, str):
        yield key, value
    elif isinstance(value, list):
        for item in value:
            yield from _texts(key, item)
    elif isinstance(value, Mapping):
        for name, item in value.items():
            yield key, str(name)
            yield from _texts(f"{key}.{name}".removeprefix("."), item)
