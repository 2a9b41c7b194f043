"""The commands and plain words that may stand in an answer."""


def words(text: str) -> list[str]:
    """For tables that would be long as lists."""
    return text.split()


SYNONYMS = {  # other spellings of a command or sign
    "dfrac": "frac", "tfrac": "frac", "cfrac": "frac", "dbinom": "binom", "tbinom": "binom",
    "leq": "le", "leqslant": "le", "leqq": "le", "geq": "ge", "geqslant": "ge", "geqq": "ge",
    "neq": "ne", "lt": "<", "gt": ">", "lvert": "|", "rvert": "|", "vert": "|", "mid": "|",
    "lVert": "Vert", "rVert": "Vert", "|": "Vert", "dots": "ldots", "cdots": "ldots",
    "dotsc": "ldots", "dotsb": "ldots", "varnothing": "emptyset", "land": "and", "wedge": "and",
    "lor": "or", "vee": "or", "{": "lset", "}": "rset", "lbrace": "lset", "rbrace": "rset",
    "varphi": "phi", "lbrack": "[", "rbrack": "]",
    "lparen": "(", "rparen": ")", "backslash": "setminus", "smallsetminus": "setminus",
    "degree": "circ", "ast": "*", "isin": "in", "colon": ":",
    "rightarrow": "to", "Rightarrow": "implies", "iff": "implies", "Longrightarrow": "implies",
    "Leftrightarrow": "implies", "arcctg": "arccot", "tg": "tan", "ctg": "cot", "arctg": "arctan",
    "cosec": "csc", "infin": "infty", "thickapprox": "approx", "simeq": "approx",
    "doteq": "approx", "varepsilon": "epsilon", "bmod": "mod", "prime": "'",
    "bigcup": "cup", "lnot": "neg", "qquad": "quad", "textdegree": "circ",
}  # fmt: skip

TEXT_COMMANDS = {
    "text", "mbox", "textbf", "textit", "textrm", "textsf", "texttt", "textnormal", "emph",
    "mathrm", "hbox", "operatorname", "operatorname*", "mathsf", "mathtt", "underline",
    "textsc", "bold",
}  # fmt: skip

FONTS = {"mathbf", "boldsymbol", "mathit", "mathcal", "mathnormal", "bm", "pmb", "mathfrak",
         "mathscr", "mathord", "mathop"}  # fmt: skip

STYLING_COMMANDS = TEXT_COMMANDS | FONTS
FUNCTIONS = {
    "sin", "cos", "tan", "cot", "sec", "csc", "arcsin", "arccos", "arctan", "arccot", "arcsec",
    "arccsc", "sinh", "cosh", "tanh", "coth", "sech", "csch", "ln", "log", "lg", "exp", "det",
    "gcd", "lcm", "min", "max", "arcsinh", "arccosh", "arctanh", "arsinh", "arcosh", "artanh",
}  # fmt: skip
# Plain words that are read as the command of that name, or of another.
COMMAND_WORDS = FUNCTIONS | {
    "pi",
    "sqrt",
    "infty",
    "theta",
    "alpha",
    "beta",
    "gamma",
    "lambda",
    "cbrt",
}
WORD_COMMANDS = {"infinity": "infty", "inf": "infty", "asin": "arcsin", "acos": "arccos",
            "atan": "arctan"}  # fmt: skip
NUMBER_WORDS = {
    word: number
    for number, word in enumerate(
        words(
            """zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen
            fifteen sixteen seventeen eighteen nineteen"""
        )
    )
}
_TENS = words("twenty thirty forty fifty sixty seventy eighty ninety")
NUMBER_WORDS |= {word: 10 * number for number, word in enumerate(_TENS, 2)}
NUMBER_WORDS |= {"hundred": 100} | {
    word: 1000**power for power, word in enumerate(words("thousand million billion trillion"), 1)
}
TWO_LETTER_WORDS = {"of", "or", "no", "No", "NO", "is", "to"}  # not products of their letters
WORDS_AFTER_NUMBERS = {
    "am",
    "pm",
    "AM",
    "PM",
    "in",
    "pct",
}  # and in text
WORDS_BEFORE_UNITS = {"per", "square", "sq", "cubic", "cu"}
THREE_LETTER_WORDS = {
    "and", "yes", "Yes", "YES", "odd", "Odd", "not", "all", "any",
    "the", "The", "mph", "per", "lbs", "day", "mol", "deg", "rad", "sec", "min", "hrs", "DNE",
    "for", "men", "old",
    "red", "Red", "are", "kmh", "mod", "but", "Tom", "Sam", "Bob", "Amy", "Ann", "Ben",
    "Max", "Dan", "Joe", "Tim", "Kim", "Meg", "Lee", "Jim", "Mon", "Tue", "Wed", "Thu", "Fri",
    "Sun", "Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec",
}  # fmt: skip

GREEK_LETTERS = set(
    words(
        """alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi pi rho sigma
        tau upsilon phi varphi chi psi omega Gamma Delta Theta Lambda Xi Pi Sigma Upsilon Phi
        Psi Omega vartheta varsigma varrho ell hbar aleph imath jmath partial nabla Re Im"""
    )
)
NAMING = {  # commands whose argument is a name, not a value
    "vec", "hat", "bar", "overline", "tilde", "dot", "ddot", "widehat", "overrightarrow",
    "overleftarrow", "overarc", "widetilde", "overset",
}  # fmt: skip
BIG_OPERATORS = {"sum", "prod", "int", "lim", "iint", "iiint", "oint", "sup", "inf", "bigoplus"}


def is_word(word: str) -> bool:
    """Whether letters outside of `\\text` are a word and not a product of variables."""
    known = word in TWO_LETTER_WORDS or word in THREE_LETTER_WORDS or word.lower() in NUMBER_WORDS
    if known or "." in word:
        return True
    if len(word) < 4 or word.isupper():
        return False
    in_a_row = "".join(chr(ord(word[0]) + i) for i in range(len(word)))
    return word != in_a_row and any(letter in "aeiouyAEIOUY" for letter in word)
