"""Which names announce a secret: `HF_TOKEN`, `apiKey`, `--db.password`; and which only sound alike: `--eos_token`."""

import re

_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_SECRET_ENDINGS = ("apikey", "credential", "credentials", "passphrase", "passwd", "password", "secret", "token")
_SECRET_LAST_WORDS = {
    *("auth", "authorization", "cookie", "cred", "creds", "jwt", "key", "otp", "pass", "pat", "pwd", "pw", "secrets"),
    *("sig", "signature"),
    # One word where others write two. Not all that end so: a `lowpass` is a filter.
    *("dbpass", "keypass", "requirepass", "storepass", "userpass"),
}
_SECRET_PAIRS = ("apikey", "accesskey", "secretkey", "privatekey", "accesstoken", "apitoken", "authtoken", "authkey")
# `--token-file` names a place and `--token-dim` a size: neither is a secret, both are worth reading.
_HARMLESS_LAST_WORDS = {
    *("budget", "count", "dim", "dims", "idx", "index", "len", "length", "limit", "loss", "rate", "size", "type"),
    *("dir", "directory", "file", "folder", "name", "path", "stdin"),
}
# `--eos_token`, `data.prompt_key`: training programs call a piece of text a token, and a column of data a key.
_ORDINARY_BEFORE_LAST = {
    *("audio", "bos", "class", "cls", "end", "eos", "image", "mask", "pad", "per", "sep", "special", "start", "stop"),
    *("unk", "video"),
    *("answer", "caption", "chosen", "column", "content", "data", "feature", "fn", "group", "input", "json", "label"),
    *("loss", "messages", "metric", "monitor", "output", "partition", "primary", "prompt", "public", "question"),
    *("rejected", "response", "reward", "solution", "sort", "target", "text"),
}


def looks_secret(name: str) -> bool:
    """Whether a value called `name` is one to hide: `HF_TOKEN`, `apiKey`, `--db.password`; not `--max-tokens`."""
    words = _drop_ordinary([word.lower() for word in _WORDS.findall(name)])
    if not words or words[-1] in _HARMLESS_LAST_WORDS:
        return False
    joined = "".join(words)
    return (
        words[-1] in _SECRET_LAST_WORDS
        or any(word.endswith(_SECRET_ENDINGS) for word in words)
        or any(pair in joined for pair in _SECRET_PAIRS)
    )


def _drop_ordinary(words: list[str]) -> list[str]:
    """`words` without a token or key that is none: `eos_token_id` becomes `eos`."""
    if words[-2:-1] == ["token"] and words[-1] in {"id", "ids"}:
        words = words[:-1]
    is_ordinary = words[-1:] in (["token"], ["key"]) and words[-2:-1] and words[-2] in _ORDINARY_BEFORE_LAST
    return words[:-1] if is_ordinary else words
