"""From a problem to the token ids that the model reads."""

SYSTEM_PROMPT = (
    "You are talking with a user who asks a question, and you solve it.\n"
    "First think the problem through, step by step, then give the user your final answer.\n"
    "Write your response in exactly this form:\n"
    "<think> your reasoning </think>\n"
    "<answer> the final answer only </answer>\n"
)


def render(tokenizer, problem: str, system_prompt: str) -> str:
    """The chat template's text for one problem, up to where the assistant begins to write.

    An empty `system_prompt` leaves the system turn out.
    """
    messages = [{"role": "system", "content": system_prompt}] if system_prompt else []
    messages.append({"role": "user", "content": problem})
    return tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)


def tokenise(tokenizer, prompts: list[str]) -> list[list[int]]:
    """Token ids of rendered prompts; the template has written the special tokens already."""
    return tokenizer(prompts, add_special_tokens=False)["input_ids"] if prompts else []
