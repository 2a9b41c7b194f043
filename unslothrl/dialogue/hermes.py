"""Hermes' form of tools, for chat templates that have none: tools in the system message, calls in
<tool_call>, results as a turn of the user in <tool_response>.
"""

import json
from collections.abc import Sequence
from typing import Any

from unslothrl.dialogue.base import Message, Tool

TOOLS = """# Tools

You may call one or more functions to assist with the user query.

You are provided with function signatures within <tools></tools> XML tags:
<tools>
{tools}
</tools>

For each function call, return a json object with function name and arguments within \
<tool_call></tool_call> XML tags:
<tool_call>
{{"name": <function-name>, "arguments": <args-json-object>}}
</tool_call>"""


def with_tools(messages: list[Message], tools: Sequence[Tool], role: str) -> list[Message]:
    """The tools after the system message or, if that is the `role`, before the user's first one."""
    lines = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
    text = TOOLS.format(tools=lines)
    if not messages or messages[0]["role"] != role:
        return [{"role": role, "content": text}, *messages]
    parts = (messages[0]["content"], text) if role == "system" else (text, messages[0]["content"])
    return [{**messages[0], "content": "\n\n".join(parts)}, *messages[1:]]


def as_texts(messages: Sequence[Message]) -> list[Message]:
    """Calls as text of the assistant, results of tools as turns of the user."""
    written: list[Message] = []
    was_result = False
    for message in messages:
        is_result = message["role"] == "tool"
        if is_result:
            text = f"<tool_response>\n{message['content']}\n</tool_response>"
            if was_result:
                written[-1]["content"] += "\n" + text
            else:
                written.append({"role": "user", "content": text})
        elif has_calls(message):
            calls = [
                json.dumps(function(call), ensure_ascii=False) for call in message["tool_calls"]
            ]
            texts = (f"<tool_call>\n{call}\n</tool_call>" for call in calls)
            content = "\n".join(filter(None, (message.get("content"), *texts)))
            written.append({"role": "assistant", "content": content})
        else:
            written.append(message)
        was_result = is_result
    return written


def has_tools(messages: Sequence[Message]) -> bool:
    """Whether there are calls or results in them."""
    return any(message["role"] == "tool" or has_calls(message) for message in messages)


def has_calls(message: Message) -> bool:
    """The policy's own turn alone: no one else can call."""
    return message["role"] == "assistant" and bool(message.get("tool_calls"))


def function(call: dict[str, Any]) -> dict[str, Any]:
    """Of a call in OpenAI's form, which may lack its outer object."""
    inner = call.get("function", call)
    return {"name": inner["name"], "arguments": inner["arguments"]}
