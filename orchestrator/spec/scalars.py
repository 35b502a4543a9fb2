"""Plain scalars of YAML 1.2 (core schema): `no` is text, `1e-4` is a number, `0o10` is eight."""

import re
from typing import Any, Final

_CONSTANTS: Final[dict[str, Any]] = {
    "": None,
    "~": None,
    "null": None,
    "Null": None,
    "NULL": None,
    "true": True,
    "True": True,
    "TRUE": True,
    "false": False,
    "False": False,
    "FALSE": False,
}
# A leading zero stays text: `010` is ten for some and eight for others, so the field that gets it says no.
_DECIMAL: Final = re.compile(r"[-+]?(0|[1-9][0-9]*(_[0-9]+)*)")
_OCTAL: Final = re.compile(r"0o[0-7]+")
_HEXADECIMAL: Final = re.compile(r"0x[0-9a-fA-F]+")
_FLOAT: Final = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_INFINITY: Final = re.compile(r"[-+]?\.(inf|Inf|INF)")
_NOT_A_NUMBER: Final = re.compile(r"\.(nan|NaN|NAN)")
_DIGITS_AT_MOST: Final = 64  # Python itself refuses to read integers of more than 4,300 digits


def read_plain(text: str) -> Any:
    """Return None, a bool, an int, a float, or the text itself."""
    if text in _CONSTANTS:
        return _CONSTANTS[text]
    if len(text) > _DIGITS_AT_MOST:
        return text
    if _DECIMAL.fullmatch(text):
        return int(text)
    if _OCTAL.fullmatch(text) or _HEXADECIMAL.fullmatch(text):
        return int(text, 0)
    if _FLOAT.fullmatch(text) and not _has_leading_zero(text):
        return float(text)
    if _INFINITY.fullmatch(text) or _NOT_A_NUMBER.fullmatch(text):
        return float(text.replace(".", ""))
    return text


def _has_leading_zero(text: str) -> bool:
    digits = text.lstrip("+-")
    return len(digits) > 1 and digits[0] == "0" and digits.isdigit()
