"""What answers a question that stepnet asks: an option of the command line, and an argument in Python.

    semantics    --semantics reset=VALUE (Python: semantics={'reset': 'after' or 'before'})

A message that asks for something names what to say by a row of this table. So all say it in one way, and one
test gives every answer.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Option:
    """An option of the command line, what stands behind it, and the argument of a Python function that is the
    same. The last two are templates, of what the question is about.
    """

    name: str
    value: str
    argument: str

    def text(self, **about: str) -> str:
        """The option as a message says it."""
        value, argument = self.value.format(**about), self.argument.format(**about)
        return f"{self.name}{value and f' {value}'} (Python: {argument})"


OPTIONS = {
    "layout": Option("--from", "LAYOUT", "layout=LAYOUT"),
    "layout of": Option("--from", "{module}={layout}", "layouts={{{module!r}: {layout!r}}}"),
    "module": Option("--module", "NAME", "module=NAME"),
    "sizes": Option("--size", "inputs=N --size hidden=N", "sizes={{'inputs': N, 'hidden': N}}"),
    "semantics": Option("--semantics", "{field}={value}", "semantics={{{field!r}: {choice}}}"),
    "semantics of": Option(
        "--semantics", "{module}:{field}={value}", "semantics={{'{module}:{field}': {choice}}}"
    ),
    "stack": Option("--stack", "", "stack=True"),
    "order": Option("--stack", "{modules}", "stack=True, order={names}"),
    "drop": Option("--drop", "NAME", "drop=[NAME]"),
    "rest": Option("--rest", "{rest}", "rest={rest!r}"),
    "dtype": Option("--dtype", "{dtype}", "dtype={dtype!r}"),
    "exact": Option("--exact", "", "exact=True"),
    "force": Option("--force", "", "force=True"),
    "column": Option("--column", "NAME", "column=NAME"),
    "most": Option("--most", "BYTES", "most=BYTES"),
}


def option(question: str, **about: str) -> str:
    """What answers a question, for a message; about: what the question is about, as its row has it.

    >>> option("layout of", module="encoder", layout="torch.gru")
    "--from encoder=torch.gru (Python: layouts={'encoder': 'torch.gru'})"
    >>> option("stack")
    '--stack (Python: stack=True)'
    """
    return OPTIONS[question].text(**about)
