"""Cases whose gold has several letters, among them letters whose case matters and Greek letters."""

from pathlib import Path

KIND = "several variables"

# gold | right ones | wrong ones, separated by ;;
TABLE = Path(__file__).with_name("letters.txt").read_text()
SUMS = [
    ("a", "b"),
    ("x", "y"),
    ("m", "n"),
    ("N", "k"),
    ("P", "Q"),
    ("\\alpha ", "\\beta "),
    ("u", "v"),
    ("r", "s"),
    ("p", "q"),
    ("\\mu ", "\\nu "),
    ("T", "t"),
    ("\\theta ", "\\varphi "),
    ("h", "r"),
]


def swap_case(s):
    """The letter in the other case (Greek: another letter)."""
    return s.swapcase() if len(s) == 1 else "\\gamma "


def generated(book):
    """Small expressions and equations in two letters."""
    for i, (a, b) in enumerate(SUMS):
        p, q = i % 5 + 2, (3 * i) % 7 + 3
        A, B = swap_case(a), ("z" if len(b) == 1 else "\\delta ")
        if b == A:
            A = "W"
        g1 = "%d%s^2%s-%d%s" % (p, a, b, q, b)
        book.add(
            KIND,
            g1,
            [
                "-%d%s+%d%s^2%s" % (q, b, p, a, b),
                "%s(%d%s^2-%d)" % (b, p, a, q),
                "%d%s^{2}%s - %d%s" % (p, a, b, q, b),
                "%d%s%s^2-%d%s" % (p, b, a, q, b),
                "(%d%s^2-%d)%s" % (p, a, q, b),
            ],
            [
                "%d%s^2%s+%d%s" % (p, a, b, q, b),
                "%d%s^2%s-%d%s" % (p, A, b, q, b),
                "%d%s^2%s-%d%s" % (p, a, B, q, B),
                "%d%s%s^2-%d%s" % (p, a, b, q, b),
                "%d%s^2%s-%d%s" % (p + 1, a, b, q, b),
                "%d%s^2%s-%d%s" % (p, a, b, q + 1, b),
                "%d%s^2%s" % (p, a, b),
                g1 + "+1",
                f"-({g1})",
                "%d%s^2%s-%d" % (p, a, b, q),
                "%d%s^2%s-%d%s" % (p, b, a, q, a),
                g1 + " \\text{ or } 0",
            ],
        )
        g2 = "\\frac{%s+%d}{%d%s}" % (a, q, p, b)
        book.add(
            KIND,
            g2,
            [
                "\\dfrac{%d+%s}{%d%s}" % (q, a, p, b),
                "\\frac{1}{%d%s}(%s+%d)" % (p, b, a, q),
                "\\frac{%s}{%d%s}+\\frac{%d}{%d%s}" % (a, p, b, q, p, b),
                "\\frac{-%s-%d}{-%d%s}" % (a, q, p, b),
                "(%s+%d)/(%d%s)" % (a, q, p, b),
            ],
            [
                "\\frac{%s-%d}{%d%s}" % (a, q, p, b),
                "\\frac{%d%s}{%s+%d}" % (p, b, a, q),
                "\\frac{%s+%d}{%d%s}" % (A, q, p, b),
                "\\frac{%s+%d}{%d%s}" % (a, q, p, B),
                "\\frac{%s+%d}{%d%s}" % (a, q, p + 1, b),
                "\\frac{%s+%d}{%d%s}" % (a, q + 1, p, b),
                "\\frac{%s+%d}{%d}" % (a, q, p),
                "\\frac{%s+%d}{%d%s}" % (b, q, p, a),
                "\\frac{%s}{%d%s}" % (a, p, b),
                g2 + " + 1",
                "-" + g2,
                "\\frac{%s+%d}{%d}%s" % (a, q, p, b),
                "\\neq " + g2,
            ],
        )
        g3 = f"({a}+{b})^2"
        book.add(
            KIND,
            g3,
            [
                f"{a}^2+2{a}{b}+{b}^2",
                f"({b}+{a})^{{2}}",
                f"({a}+{b})({b}+{a})",
                f"{a}^2+{b}^2+2{a}{b}",
                f"${g3}$",
            ],
            [
                f"{a}^2+{b}^2",
                f"({a}-{b})^2",
                f"({a}+{b})^3",
                f"{a}^2+{a}{b}+{b}^2",
                f"({A}+{b})^2",
                f"({a}+{B})^2",
                f"{a}+{b}",
                f"(2{a}+{b})^2",
                g3 + "+1",
                "-" + g3,
                f"{a}^2-{b}^2",
                f"2({a}+{b})",
            ],
        )
        g4 = "%s=%d%s+%d" % (a, p, b, q)
        book.add(
            KIND,
            g4,
            [
                "%d%s+%d=%s" % (p, b, q, a),
                "%s = %d + %d%s" % (a, q, p, b),
                "%s-%d%s=%d" % (a, p, b, q),
                "%s - %d%s - %d = 0" % (a, p, b, q),
                "2%s=%d%s+%d" % (a, 2 * p, b, 2 * q),
                "-%s=-%d%s-%d" % (a, p, b, q),
            ],
            [
                "%s=%d%s-%d" % (a, p, b, q),
                "%s=%d%s+%d" % (b, p, a, q),
                "%s=%d%s+%d" % (A, p, b, q),
                "%s=%d%s+%d" % (a, p, B, q),
                "%s=%d%s+%d" % (a, p + 1, b, q),
                "%s=%d%s+%d" % (a, p, b, q + 1),
                "%s=-%d%s+%d" % (a, p, b, q),
                "%s=%d%s" % (a, p, b),
                "%s+1=%d%s+%d" % (a, p, b, q),
                "0=0",
                f"{a}={a}",
                f"{a}={b}",
                "2%s=%d%s+%d" % (a, p, b, q),
                "%s \\neq %d%s+%d" % (a, p, b, q),
            ],
            max_wrong=13,
        )


def build(book):
    for line in TABLE.strip().split("\n"):
        g, ri, wr = line.split(" | ")
        book.add(
            KIND,
            g,
            [s.strip() for s in ri.split(";;")],
            [s.strip() for s in wr.split(";;")],
            max_wrong=13,
        )
    generated(book)
