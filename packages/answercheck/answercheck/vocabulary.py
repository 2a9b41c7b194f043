"""The commands and plain words that may stand in an answer."""


def words(text: str) -> list[str]:
    """For tables that would be long as lists."""
    return text.split()


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
SYNONYMS = {other: name for name, others in _SPELLINGS.items() for other in words(others)}

FONTS = set(
    words("mathbf boldsymbol mathit mathcal mathnormal bm pmb mathfrak mathscr mathord mathop")
)
STYLING_COMMANDS = FONTS | set(
    words(
        """text mbox textbf textit textrm textsf texttt textnormal emph mathrm hbox operatorname
        operatorname* mathsf mathtt underline textsc bold"""
    )
)
FUNCTIONS = set(
    words(
        """sin cos tan cot sec csc arcsin arccos arctan arccot arcsec arccsc sinh cosh tanh coth
        sech csch ln log exp det gcd lcm min max arcsinh arccosh arctanh"""
    )
)
WORD_COMMANDS = {  # plain words that are commands: of that name, or of another
    "infinity": "infty", "inf": "infty", "asin": "arcsin", "acos": "arccos", "atan": "arctan",
    "lg": "log", "arsinh": "arcsinh", "arcosh": "arccosh", "artanh": "arctanh",
}  # fmt: skip
for _name in (*FUNCTIONS, *words("pi sqrt infty theta alpha beta gamma lambda cbrt")):
    WORD_COMMANDS[_name] = _name

_ONES = words(
    """zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen
    sixteen seventeen eighteen nineteen"""
)
_TENS = words("twenty thirty forty fifty sixty seventy eighty ninety")
_POWERS_OF_1000 = words("thousand million billion trillion")
NUMBER_WORDS = {word: number for number, word in enumerate(_ONES)}
NUMBER_WORDS |= {word: 10 * number for number, word in enumerate(_TENS, 2)} | {"hundred": 100}
NUMBER_WORDS |= {word: 1000**power for power, word in enumerate(_POWERS_OF_1000, 1)}

WORDS_AFTER_NUMBERS = set(words("am pm AM PM in pct"))  # and in text
WORDS_BEFORE_UNITS = set(words("per square sq cubic cu"))
_SHORT_WORDS = set(  # not products of their letters
    words(
        """of or no No NO is to and yes Yes YES odd Odd not all any the The mph per lbs day mol deg
        rad sec min hrs DNE for men old red Red are kmh mod but Tom Sam Bob Amy Ann Ben Max Dan Joe
        Tim Kim Meg Lee Jim Mon Tue Wed Thu Fri Sun Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec
        """
    )
)
GREEK_LETTERS = set(
    words(
        """alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi pi rho sigma
        tau upsilon phi varphi chi psi omega Gamma Delta Theta Lambda Xi Pi Sigma Upsilon Phi
        Psi Omega vartheta varsigma varrho ell hbar aleph imath jmath partial nabla Re Im"""
    )
)
NAMING = set(  # commands whose argument is a name, not a value
    words(
        """vec hat bar overline tilde dot ddot widehat overrightarrow overleftarrow overarc
        widetilde overset angle triangle mathbb"""
    )
)
BIG_OPERATORS = set(words("sum prod int lim iint iiint oint sup inf bigoplus"))


def is_word(word: str) -> bool:
    """Whether letters outside of `\\text` are a word and not a product of variables."""
    if word in _SHORT_WORDS or word.lower() in NUMBER_WORDS or "." in word:
        return True
    if len(word) < 4 or word.isupper():
        return False
    in_a_row = "".join(chr(ord(word[0]) + i) for i in range(len(word)))
    return word != in_a_row and any(letter in "aeiouyAEIOUY" for letter in word)
