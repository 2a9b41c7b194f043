"""System prompts that ask for the form in which a reward looks for the answer."""

THINK_AND_ANSWER = (
    "You are talking with a user who asks a question, and you solve it.\n"
    "First think the problem through, step by step, then give the user your final answer.\n"
    "Write your response in exactly this form:\n"
    "<think> your reasoning </think>\n"
    "<answer> the final answer only </answer>\n"
)
BOXED = "Reason step by step, and put your final answer within \\boxed{}."
CODE = (
    "Solve the problem with a program in Python. Reason first, then write the whole program in one "
    "block that begins with ```python and ends with ```. Unless the problem asks for a function, "
    "the program reads from standard input and prints to standard output."
)
