"""Writes the chat about a product that MLPerf's client for Qwen3-VL sends.

Source: mlcommons/endpoints 381d13b, predefined/shopify_product_catalogue; mlcommons/inference multimodal/qwen3-vl.
"""

from typing import Any

SAMPLING = {"temperature": 0.7, "top_p": 0.8, "top_k": 20, "repetition_penalty": 1.0}
"""Sampling parameters from the model's generation_config.json, which the rules require."""

SCHEMA = """{
  "additionalProperties": false,
  "description": "JSON format for expected VLM responses (matches MLCommons Q3VL schema).\\n\\nReference: \
https://github.com/mlcommons/inference/blob/master/multimodal/qwen3-vl/src/mlperf_inf_mm_q3vl/schema.py",
  "properties": {
    "category": {
      "title": "Category",
      "type": "string"
    },
    "brand": {
      "title": "Brand",
      "type": "string"
    },
    "is_secondhand": {
      "title": "Is Secondhand",
      "type": "boolean"
    }
  },
  "required": [
    "category",
    "brand",
    "is_secondhand"
  ],
  "title": "ProductMetadata",
  "type": "object"
}"""
"""JSON Schema of an answer, as printed in the reference's prompt."""

SYSTEM = f"""Please analyze the product from the user prompt
and provide the following fields in a valid JSON object:
- category
- brand
- is_secondhand

You must choose only one, which is the most appropriate, correct, and specific
category out of the list of possible product categories.

The description of the product sometimes contains various types of source code
(e.g., JavaScript, CSS, HTML, etc.), where useful product information is embedded
somewhere inside the source code. For this task, you should extract the useful
product information from the source code and leverage it, and discard the
programmatic parts of the source code.

Your response should only contain a valid JSON object and nothing more, e.g.,
you should not fence the JSON object inside a ```json code block.
The JSON object should match the following JSON schema:
```json
{SCHEMA}
```
"""


def messages(title: str, description: str, categories: str, image: str) -> list[dict[str, Any]]:
    """Returns the messages of the chat. categories: a list as JSON. image: URL of the picture, e.g. `data:…`."""
    text = f"""The title of the product is the following:
```text
{title}
```

The description of the product is the following:
```text
{description}
```

The following are the possible product categories:
```json
{categories}
```
"""
    content = [
        {"type": "text", "text": text},
        {"type": "image_url", "image_url": {"url": image}},
    ]
    return [{"role": "system", "content": SYSTEM}, {"role": "user", "content": content}]
