"""Forty pieces of code, with the class of their failure."""

#: Code, tests, and the class of the failure; None if the code passes.
SNIPPETS: list[tuple[str, str, str | None]] = [
    ("def f(x):\n    return x + 1", "assert f(1) == 2", None),
    ("f = lambda x: x + 1", "assert f(1) == 2", None),
    ("import math\ndef f(x):\n    return math.gcd(x, 4)", "assert f(6) == 2", None),
    ("def f(x):\n    return x", "assert f(1) == 2", "assertion"),
    ("def f(x):\n    pass", "assert f(1) == 2", "assertion"),
    ("def f(x):\n    assert x > 1\n    return x", "assert f(1) == 1", "assertion"),
    ("def f(x):\n    return x", "assert f(1) == 2, 'the first'", "assertion"),
    ("def f(x):\n    return (x + 1", "f(1)", "parenthesis"),
    ("def f(x):\n    return [x, 1", "f(1)", "parenthesis"),
    ("def f(x):\n    return {x: 1", "f(1)", "parenthesis"),
    ("def f(x:\n    return x", "f(1)", "parenthesis"),
    ("def f(x):\n    return x + 1)", "f(1)", "parenthesis"),
    ("def f(x):\n    return x + 1]", "f(1)", "parenthesis"),
    ("def f(x):\n    return x}", "f(1)", "parenthesis"),
    ("def f(x):\n    return (x, [1)]", "f(1)", "parenthesis"),
    ("def f(x):\n    return {x: (1}", "f(1)", "parenthesis"),
    ("def f(x)\n    return x", "f(1)", "other syntax"),  # expected ':'
    ("def f(x):\n    return x +", "f(1)", "other syntax"),
    ("```python\ndef f(x):\n    return x", "f(1)", "other syntax"),
    ("def f(x):\n    return x\n```", "f(1)", "other syntax"),
    ("The function is as follows.", "f(1)", "other syntax"),
    ("def f(x):\n    return x y", "f(1)", "other syntax"),
    ("def f(x):\n    if x = 1:\n        return x", "f(1)", "other syntax"),
    ("def f(x):\nreturn x", "f(1)", "other syntax"),  # expected an indented block
    ("def f(x):\n    y = 1\n  return x", "f(1)", "other syntax"),  # unindent does not match
    ("def f(x):\n    return 'x", "f(1)", "other syntax"),  # unterminated string literal
    ("return 1", "f(1)", "other syntax"),  # 'return' outside function
    ("def f(x):\n    return y", "f(1)", "undefined name"),
    ("def f(x: List[int]):\n    return x", "f(1)", "undefined name"),
    ("def g(x):\n    return x", "f(1)", "undefined name"),
    ("", "f(1)", "undefined name"),
    ("def f(x):\n    return f(x)", "f(1)", "time or depth"),
    ("def f(x):\n    while True:\n        x += 1", "f(1)", "time or depth"),
    ("def f(x):\n    return x + 'a'", "f(1)", "other"),
    ("def f(x):\n    return x[1]", "f([1])", "other"),
    ("def f():\n    return 1", "f(1)", "other"),
    ("def f(x):\n    return x / 0", "f(1)", "other"),
    ("import nothing_of_that_name", "f(1)", "other"),
    ("def f(x):\n    raise NotImplementedError", "f(1)", "other"),
    ("def f(x):\n    return [0] * 10 ** 11", "f(1)", "other"),
]
