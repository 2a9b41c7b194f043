"""The names of units, and where plain letters after a number are units."""

import re

_NAMES = {
    "inch": "inches in", "ft": "foot feet", "yd": "yard", "mi": "mile", "um": "micron",
    "lb": "pound lbs", "oz": "ounce", "ton": "tonne", "g": "gm", "s": "sec",
    "min": "minute", "h": "hour hr hrs", "day": "", "week": "", "month": "", "year": "yr",
    "L": "l", "mL": "ml", "dL": "dl", "cL": "cl", "gal": "gallon", "cal": "calorie",
    "kcal": "kilocalorie", "Cal": "", "atm": "atmosphere", "A": "amp", "ohm": "\\Omega",
    "kohm": "kilohm", "Mohm": "megohm megaohm", "eV": "electronvolt electron-volt", "mmHg": "torr",
    "dollar": "$ USD", "cent": "¢", "pounds sterling": "\\pounds GBP", "euro": "\\euro EUR",
    "yen": "JPY", "yuan": "CNY", "rupee": "INR Rs", "franc": "CHF", "AUD": "", "CAD": "",
    "unit": "", "degC": "celsius", "degF": "fahrenheit", "rad": "radian", "sr": "steradian",
    "acre": "", "hectare": "ha", "quart": "qt", "pint": "pt", "cup": "", "tbsp": "tablespoon",
    "tsp": "teaspoon", "angstrom": "\\AA", "bar": "", "person": "people",
    "point": "", "way": "", "time": "", "student": "", "minute of arc": "arcminute",
    "second of arc": "arcsecond", "dB": "decibel", "bit": "", "B": "byte", "kB": "KB kilobyte",
    "MB": "megabyte", "GB": "gigabyte", "TB": "terabyte", "rev": "revolution", "psi": "",
    "hp": "horsepower", "ly": "lightyear light-year", "au": "AU", "Da": "dalton", "u": "amu",
    "cd": "candela", "knot": "kn", "erg": "", "dyn": "dyne", "G": "gauss", "ppm": "",
}  # fmt: skip
_SI = {
    "m": "meter metre", "g": "gram", "s": "second", "A": "ampere", "K": "kelvin", "mol": "mole",
    "L": "liter litre", "J": "joule", "W": "watt", "N": "newton", "Pa": "pascal", "Hz": "hertz",
    "V": "volt", "C": "coulomb", "F": "farad", "H": "henry", "T": "tesla", "Wb": "weber",
    "S": "siemens", "eV": "electronvolt", "bar": "", "lm": "lumen", "lx": "lux",
    "Bq": "becquerel", "Gy": "gray", "Sv": "sievert", "M": "molar", "Ci": "curie",
}  # fmt: skip
_PREFIXES = {
    "k": "kilo", "M": "mega", "G": "giga", "T": "tera", "c": "centi", "d": "deci", "m": "milli",
    "u": "micro", "n": "nano", "p": "pico", "f": "femto", "h": "hecto",
}  # fmt: skip
_NO_PREFIX = {"ft", "pt", "hA", "fm", "cd", "mM"}  # other units, or in no use
COMPOUND = {"kWh": "kW h", "Wh": "W h", "MWh": "MW h", "mAh": "mA h", "Ah": "A h", "mph": "mi / h",
            "kph": "km / h", "kmh": "km / h", "kmph": "km / h", "rpm": "rev / min",
            "mpg": "mi / gal", "fps": "ft / s", "Nm": "N m", "kNm": "kN m", "Ns": "N s",
            "Js": "J s"}  # fmt: skip


def _aliases() -> dict[str, str]:
    table: dict[str, str] = {}
    for symbol, others in _SI.items():
        for name in (symbol, *others.split()):
            table[name] = symbol
        for prefix, long in _PREFIXES.items():
            if prefix + symbol in _NO_PREFIX:
                continue
            table.setdefault(prefix + symbol, prefix + symbol)
            table |= {long + name: prefix + symbol for name in others.split()}
    for name, others in _NAMES.items():
        table |= dict.fromkeys((name, *others.split()), name)
    return table


ALIASES = _aliases()  # spelling -> name
KNOWN = frozenset(ALIASES.values())

SYMBOLS = frozenset(name for name in (*ALIASES, *COMPOUND) if name.isalpha() and len(name) < 5)
_POWER = r"(?:\s*\^\s*(?:-?\d(?!\d)|\{\s*-?\d\s*\}))?"
_SYMBOL = rf"(?!(?:and|or|of|per|is|each|a)\b)[a-zA-Z]{{1,4}}(?![a-zA-Z]){_POWER}"
_PLAIN = re.compile(
    rf"{_SYMBOL}(?:\s*(?:/|\*|\\cdot|\\times|-|(?<=\s))\s*\(?{_SYMBOL}\)?)*"
    r"(?=\s*(?:$|[,;.)\]}&]|\\\\|\d|\\text|\\cup|\\q?quad|(?:and|or|of|per|is|each|a)\b|[a-z]{4}))"
)
_WORD = re.compile(r"[a-zA-Z]+")
# Of two small letters only these are units in a gold answer: "3 cd" is rather c times d.
_USUAL = frozenset(
    ["cm", "mm", "km", "kg", "mg", "ml", "oz", "lb", "ft", "yd", "hr", "ms", "mi", "in"]
)
# "3mg" may be three m g: as a gold answer it is a unit only after a space, or where it is of these.
_UNSPACED = re.compile(r"(?:cm|mm|km|kg|mL|ml|oz|lb|Hz|kJ|kW)(?![a-zA-Z])")


def plain_units(text: str, at: int, is_gold: bool) -> str:
    """The unit in plain letters from `at` on ("J/mol", "kg m/s^2"), "" where there is none: single
    letters alone may be variables, and what goes on as an expression is one."""
    match = _PLAIN.match(text, at)
    if match is None:
        return ""
    words = _WORD.findall(match[0].replace("\\cdot", "").replace("\\times", ""))
    if not all(word in SYMBOLS for word in words) or max(map(len, words)) < 2:
        return ""
    if is_gold and any(len(word) == 2 and word.islower() and word not in _USUAL for word in words):
        return ""
    spaced = text[at - 1 : at].isspace() or _UNSPACED.match(text, at)
    return match[0] if spaced or not is_gold else ""
