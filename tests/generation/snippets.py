"""Forty pieces of code that fail, or not: the class by the exception, and by the paper's rule where it differs."""

#: (code, tests, class, class by the message alone or None for the same); None is a pass.
SNIPPETS: list[tuple[str, str, str | None, str | None]] = [
    ("def f(x):\n    return x + 1", "assert f(1) == 2", None, None),
    ("f = lambda x: x + 1", "assert f(1) == 2", None, None),
    ("import math\ndef f(x):\n    return math.gcd(x, 4)", "assert f(6) == 2", None, None),
    ("def f(x):\n    return x", "assert f(1) == 2", "assertion", None),
    ("def f(x):\n    pass", "assert f(1) == 2", "assertion", None),
    ("def f(x):\n    assert x > 1\n    return x", "assert f(1) == 1", "assertion", None),
    ("def f(x):\n    return x", "assert f(1) == 2, 'the first'", "assertion", "other"),
    ("def f(x):\n    return (x + 1", "f(1)", "parenthesis", None),
    ("def f(x):\n    return [x, 1", "f(1)", "parenthesis", None),
    ("def f(x):\n    return {x: 1", "f(1)", "parenthesis", None),
    ("def f(x:\n    return x", "f(1)", "parenthesis", None),
    ("def f(x):\n    return x + 1)", "f(1)", "parenthesis", None),
    ("def f(x):\n    return x + 1]", "f(1)", "parenthesis", None),
    ("def f(x):\n    return x}", "f(1)", "parenthesis", None),
    ("def f(x):\n    return (x, [1)]", "f(1)", "parenthesis", None),
    ("def f(x):\n    return {x: (1}", "f(1)", "parenthesis", None),
    ("def f(x)\n    return x", "f(1)", "other syntax", "other"),  # expected ':'
    ("def f(x):\n    return x +", "f(1)", "other syntax", None),
    ("```python\ndef f(x):\n    return x", "f(1)", "other syntax", None),
    ("def f(x):\n    return x\n```", "f(1)", "other syntax", None),
    ("The function is as follows.", "f(1)", "other syntax", None),
    ("def f(x):\n    return x y", "f(1)", "other syntax", None),
    ("def f(x):\n    if x = 1:\n        return x", "f(1)", "other syntax", None),
    ("def f(x):\nreturn x", "f(1)", "other syntax", "other"),  # expected an indented block
    ("def f(x):\n    y = 1\n  return x", "f(1)", "other syntax", "other"),  # unindent does not match
    ("def f(x):\n    return 'x", "f(1)", "other syntax", "other"),  # unterminated string literal
    ("return 1", "f(1)", "other syntax", "other"),  # 'return' outside function
    ("def f(x):\n    return y", "f(1)", "undefined name", None),
    ("def f(x: List[int]):\n    return x", "f(1)", "undefined name", None),
    ("def g(x):\n    return x", "f(1)", "undefined name", None),
    ("", "f(1)", "undefined name", None),
    ("def f(x):\n    return f(x)", "f(1)", "time or depth", None),
    ("def f(x):\n    while True:\n        x += 1", "f(1)", "time or depth", None),
    ("def f(x):\n    return x + 'a'", "f(1)", "other", None),
    ("def f(x):\n    return x[1]", "f([1])", "other", None),
    ("def f():\n    return 1", "f(1)", "other", None),
    ("def f(x):\n    return x / 0", "f(1)", "other", None),
    ("import nothing_of_that_name", "f(1)", "other", None),
    ("def f(x):\n    raise NotImplementedError", "f(1)", "other", "assertion"),
    ("def f(x):\n    return [0] * 10 ** 11", "f(1)", "other", "assertion"),
]
