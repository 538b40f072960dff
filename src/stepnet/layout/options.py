"""The options of the command line, and the Python arguments, that messages tell the user to set.

    semantics    --semantics reset=VALUE (Python: semantics={'reset': 'after' or 'before'})

Every message that asks for an option uses a row of this table. So all have the same form, and a test covers
each.
"""

from stepnet.compiler.values.records import dataclass


@dataclass(frozen=True)
class Option:
    """An option of the command line, its value, and the equivalent argument of a Python function.

    name: the option, as "--from". value: a template, with fields in braces, of its value; "" for a flag.
    argument: a template of the Python argument.
    """

    name: str
    value: str
    argument: str

    def text(self, **about: str) -> str:
        """Returns the option, with its value, and the equivalent Python argument, for a message. about: texts
        for the fields in braces of the templates, by the fields' names.
        """
        value, argument = self.value.format(**about), self.argument.format(**about)
        return f"{self.name}{value and f' {value}'} (Python: {argument})"


OPTIONS = {
    "layout": Option("--from", "LAYOUT", "layout=LAYOUT"),
    "layout of": Option("--from", "{module}={layout}", "layouts={{{module!r}: {layout!r}}}"),
    "module": Option("--module", "NAME", "module=NAME"),
    "recurrent only": Option("--recurrent-only", "", "recurrent_only=True"),
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
    "most": Option("--most", "BYTES ahead of the command", "most=BYTES"),
    "format": Option("--format", "parquet", "file_format='parquet'"),
    "inputs": Option("--inputs", "DATA.parquet", "samples=SEQUENCES"),
    "steps": Option("--steps", "any", "steps='any'"),
    "resume": Option("--resume", "", "resume=True"),
    "bad": Option("--bad", "ROWS.parquet", "bad='ROWS.parquet'"),
    "keep": Option("--keep", "NAME", "keep=[NAME]"),
    "trust": Option("--trust-library", "", "trust=True"),
}


def option(question: str, **about: str) -> str:
    """Returns the text that a message uses to ask the user for an option.

    question: the option, a key of `OPTIONS`. about: texts for the fields of the option's templates, such as
    the name of a module.

    >>> option("layout of", module="encoder", layout="torch.gru")
    "--from encoder=torch.gru (Python: layouts={'encoder': 'torch.gru'})"
    >>> option("stack")
    '--stack (Python: stack=True)'
    """
    return OPTIONS[question].text(**about)
