"""The commands, plain words and units that may stand in an answer."""

import re


def word_set(text: str) -> set[str]:
    return set(text.split())


_SPELLINGS = {  # a command or sign, and the other names that it has
    "frac": "dfrac tfrac cfrac", "binom": "dbinom tbinom", "le": "leq leqslant leqq",
    "ge": "geq geqslant geqq", "ne": "neq", "<": "lt", ">": "gt", "|": "lvert rvert vert mid",
    "Vert": "lVert rVert |", "ldots": "dots cdots dotsc dotsb", "emptyset": "varnothing",
    "and": "land wedge", "or": "lor vee", "lset": "{ lbrace", "rset": "} rbrace", "phi": "varphi",
    "[": "lbrack", "]": "rbrack", "(": "lparen", ")": "rparen", "*": "ast", "in": "isin",
    "setminus": "backslash smallsetminus", "circ": "degree textdegree", ":": "colon",
    "to": "rightarrow", "implies": "Rightarrow iff Longrightarrow Leftrightarrow", "tan": "tg",
    "cot": "ctg", "csc": "cosec", "arctan": "arctg", "arccot": "arcctg", "infty": "infin",
    "approx": "thickapprox simeq doteq", "epsilon": "varepsilon", "mod": "bmod", "'": "prime",
    "cup": "bigcup", "neg": "lnot", "quad": "qquad", "log": "lg", "arcsinh": "arsinh",
    "arccosh": "arcosh", "arctanh": "artanh",
}  # fmt: skip
SYNONYMS = {other: name for name, others in _SPELLINGS.items() for other in others.split()}

FONTS = word_set("mathbf boldsymbol mathit mathcal mathnormal bm pmb mathfrak mathscr mathord")
FONTS |= word_set("mathop")
STYLING_COMMANDS = FONTS | word_set("text mbox textbf textit textrm textsf texttt textnormal emph")
STYLING_COMMANDS |= word_set("mathrm hbox operatorname operatorname* mathsf mathtt underline")
STYLING_COMMANDS |= word_set("textsc bold")
FUNCTIONS = word_set("sin cos tan cot sec csc arcsin arccos arctan arccot arcsec arccsc sinh cosh")
FUNCTIONS |= word_set("tanh coth sech csch ln log exp det gcd lcm min max arcsinh arccosh arctanh")
WORD_COMMANDS = {  # plain words that are commands: of that name, or of another
    "infinity": "infty", "inf": "infty", "asin": "arcsin", "acos": "arccos", "atan": "arctan",
}  # fmt: skip
_AS_COMMANDS = FUNCTIONS | word_set(
    "lg arsinh arcosh artanh pi sqrt infty theta alpha beta gamma lambda cbrt"
)
WORD_COMMANDS |= {word: SYNONYMS.get(word, word) for word in _AS_COMMANDS}

_ONES = """zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen
    fifteen sixteen seventeen eighteen nineteen"""
_TENS = "twenty thirty forty fifty sixty seventy eighty ninety"
_POWERS_OF_1000 = "thousand million billion trillion"
NUMBER_WORDS = {word: number for number, word in enumerate(_ONES.split())} | {"hundred": 100}
NUMBER_WORDS |= {word: 10 * number for number, word in enumerate(_TENS.split(), 2)}
NUMBER_WORDS |= {word: 1000**power for power, word in enumerate(_POWERS_OF_1000.split(), 1)}

WORDS_AFTER_NUMBERS = word_set("am pm AM PM in pct")  # and in text
WORDS_BEFORE_UNITS = word_set("per square sq cubic cu")
_SHORT_WORDS = word_set(  # not products of their letters
    """of or no No NO is to and yes Yes YES odd Odd not all any the The mph per lbs day mol deg
    rad sec min hrs DNE for men old red Red are kmh mod but Tom Sam Bob Amy Ann Ben Max Dan Joe
    Tim Kim Meg Lee Jim Mon Tue Wed Thu Fri Sun Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec"""
)
GREEK_LETTERS = word_set("alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi")
GREEK_LETTERS |= word_set("pi rho sigma tau upsilon phi varphi chi psi omega Gamma Delta Theta")
GREEK_LETTERS |= word_set("Lambda Xi Pi Sigma Upsilon Phi Psi Omega vartheta varsigma varrho ell")
GREEK_LETTERS |= word_set("hbar aleph imath jmath partial nabla Re Im")
NAMING = word_set("vec hat bar overline tilde dot ddot widehat overrightarrow overleftarrow")
NAMING |= word_set("overarc widetilde overset angle triangle mathbb")  # of a name, not a value
BIG_OPERATORS = word_set("sum prod int lim iint iiint oint sup inf bigoplus")


def is_word(word: str) -> bool:
    """Whether letters outside of `\\text` are a word and not a product of variables."""
    if word in _SHORT_WORDS or word.lower() in NUMBER_WORDS or "." in word:
        return True
    if len(word) < 4 or word.isupper():
        return False
    in_a_row = "".join(chr(ord(word[0]) + i) for i in range(len(word)))
    return word != in_a_row and any(letter in "aeiouyAEIOUY" for letter in word)


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
_LETTERS = re.compile(r"(?<![\\a-zA-Z])[a-zA-Z]+")
# Of two small letters only these are units in a gold answer: "3 cd" is rather c times d.
_USUAL = word_set("cm mm km kg mg ml oz lb ft yd hr ms mi in")
# "3mg" may be three m g: as a gold answer it is a unit only after a space, or where it is of these.
_UNSPACED = re.compile(r"(?:cm|mm|km|kg|mL|ml|oz|lb|Hz|kJ|kW)(?![a-zA-Z])")


def plain_units(text: str, at: int, is_gold: bool) -> str:
    """The unit in plain letters from `at` on ("J/mol", "kg m/s^2"), "" where there is none."""
    match = _PLAIN.match(text, at)
    if match is None:
        return ""
    words = _LETTERS.findall(match[0])
    if not all(word in SYMBOLS for word in words) or max(map(len, words)) < 2:
        return ""
    if is_gold and any(len(word) == 2 and word.islower() and word not in _USUAL for word in words):
        return ""
    spaced = text[at - 1 : at].isspace() or _UNSPACED.match(text, at)
    return match[0] if spaced or not is_gold else ""
