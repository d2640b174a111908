"""Python literals in texts that users write.

Exported models contain a copy of this file, so it imports only the standard library.
"""

import ast

# All exceptions of Python's parser, also for hostile texts; parsing runs no code.
UNREADABLE = (ValueError, SyntaxError, TypeError, MemoryError, RecursionError)


def unquoted(text: str) -> str:
    """The value of a quoted text such as 'a\\n'.

    A text without quotes stays as it is. If Python cannot read a quoted text, only the quotes are
    removed.
    """
    quoted = len(text) > 1 and text[0] == text[-1] and text[0] in "'\""
    if not quoted:
        return text
    try:
        value = ast.literal_eval(text)
    except UNREADABLE:
        value = None
    return value if isinstance(value, str) else text[1:-1]
