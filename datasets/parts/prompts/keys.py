"""Lists the keys that a line of the dataset `prompts` may have."""

KINDS = ("input_ids", "prompt", "messages")

REQUEST = (
    *("model", "temperature", "top_p", "seed", "stop", "logit_bias"),
    *("tools", "tool_choice", "parallel_tool_calls", "response_format", "reasoning_effort"),
    *("chat_template_kwargs", "top_k", "min_p", "min_tokens", "ignore_eos", "n"),
    *("frequency_penalty", "presence_penalty", "repetition_penalty"),
)
"""Keys of a line that become fields of its request."""

KEYS = (*KINDS, *REQUEST, "max_tokens", "max_completion_tokens", "reference", "body")
"""All keys of a line that are read."""
